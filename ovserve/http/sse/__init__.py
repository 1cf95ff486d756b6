"""PACKAGE ovserve/http/sse"""
