"""PACKAGE ovserve/http/transport"""
