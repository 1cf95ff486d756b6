"""PACKAGE ovserve/engine/client/health"""
