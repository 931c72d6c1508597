#!/bin/sh
# Become a node. Runs in the node's network namespace and in a mount namespace of its own,
# so that the node's overlay is seen nowhere else and goes away with the node.
#   boot.sh UNIQUE-NAME HOSTNAME DIRECTORY ROOT LAYER CGROUP...
set -eu
unique=$1 name=$2 directory=$3 root=$4 layer=$5
shift 5

for cgroup; do
    echo $$ >"$cgroup/cgroup.procs"
done

mount -t overlay "$unique" \
    -o "lowerdir=$layer:$root,upperdir=$directory/upper,workdir=$directory/work" \
    "$directory/merged"

# What systemd-nspawn keeps of its machines is nobody else's business, and goes away too.
mkdir -p /run/systemd/nspawn
mount -t tmpfs -o mode=755 spark-lab /run/systemd/nspawn

# Docker in the node: its data must not lie on an overlay; its runtime needs keyrings and bpf.
exec systemd-nspawn --quiet --settings=no --boot \
    --machine="$unique" --hostname="$name" --uuid="$(cat "$directory/upper/etc/machine-id")" \
    --directory="$directory/merged" \
    --register=no --keep-unit --link-journal=no \
    --resolv-conf=off --timezone=off \
    --console=read-only \
    --capability=CAP_NET_ADMIN --drop-capability=CAP_SYS_RESOURCE \
    --system-call-filter='@keyring bpf' \
    --bind="$directory/docker:/var/lib/docker"
