"""PACKAGE ovserve/http/routes"""
