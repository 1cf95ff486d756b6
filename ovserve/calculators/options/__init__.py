"""PACKAGE ovserve/calculators/options"""
