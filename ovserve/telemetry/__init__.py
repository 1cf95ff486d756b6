"""PACKAGE ovserve/telemetry"""
