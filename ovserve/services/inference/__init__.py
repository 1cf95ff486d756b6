"""KServe's and Triton's operations on servables: inference, metadata, statistics, the repository."""
