"""PACKAGE ovserve/sandbox"""
