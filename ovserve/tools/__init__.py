"""PACKAGE ovserve/tools"""
