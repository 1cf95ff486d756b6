"""PACKAGE ovserve/inference"""
