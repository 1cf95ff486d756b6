"""PACKAGE ovserve/llm/parsing/core"""
