"""PACKAGE ovserve/llm/prompt"""
