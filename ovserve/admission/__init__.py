"""PACKAGE ovserve/admission"""
