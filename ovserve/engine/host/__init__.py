"""PACKAGE ovserve/engine/host"""
