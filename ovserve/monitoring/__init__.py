"""PACKAGE ovserve/monitoring"""
