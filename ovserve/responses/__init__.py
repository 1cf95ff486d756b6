"""PACKAGE ovserve/responses"""
