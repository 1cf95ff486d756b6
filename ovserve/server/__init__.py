"""PACKAGE ovserve/server"""
