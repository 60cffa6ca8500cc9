"""Everything that knows gRPC or protobuf."""

import os

# Before grpc is first imported: its fork handlers break programs that start commands from many
# threads. Measured with 4,000 commands from 16 threads: 43 failed and 6 hung with them, none without.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
