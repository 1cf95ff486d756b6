"""PACKAGE ovserve/api"""
