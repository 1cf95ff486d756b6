"""PACKAGE ovserve/api/openai/describe"""
