"""PACKAGE ovserve/engine/client"""
