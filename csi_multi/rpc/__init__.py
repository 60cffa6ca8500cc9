"""Everything that knows gRPC or protobuf."""
