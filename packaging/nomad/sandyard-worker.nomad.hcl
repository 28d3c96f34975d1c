# A worker on each node with the metadata sandyard_worker=true: `nomad job run sandyard-worker.nomad.hcl`.
# docs/guide/nomad.md explains it.
#
# The Nomad variable nomad/jobs/sandyard-worker has an item for each node: its name, and a token of `sandyard worker token`.

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

# The program of the Debian package, on each node.
variable "program" {
  type    = string
  default = "/usr/bin/sandyard"
}

# A folder of the node. Sandboxes' disks survive the task by it.
variable "data_dir" {
  type    = string
  default = "/var/lib/sandyard-worker"
}

# How many seconds a worker that is asked to stop waits for its sandboxes. The client's max_kill_timeout must be longer by a minute.
variable "drain_seconds" {
  type    = number
  default = 300
}

variable "runtime" {
  type    = string
  default = "auto"
}

job "sandyard-worker" {
  datacenters = var.datacenters
  type        = "system"

  constraint {
    attribute = "${meta.sandyard_worker}"
    value     = "true"
  }

  # One worker after the other.
  update {
    max_parallel     = 1
    min_healthy_time = "5s"
  }

  group "worker" {
    task "worker" {
      # As root on the node: a worker makes cgroups, mounts, loop devices, network namespaces and nft rules for sandboxes.
      driver       = "raw_exec"
      kill_signal  = "SIGTERM"
      kill_timeout = "${var.drain_seconds + 60}s"

      config {
        command = var.program
        args    = ["worker"]
      }

      env {
        SANDYARD_WORKER_NAME = "${node.unique.name}"
        SANDYARD_DATA_DIR    = var.data_dir
        SANDYARD_RUNTIME     = var.runtime
        SANDYARD_SHUTDOWN    = "drain"
        SANDYARD_DRAIN_SECS  = "${var.drain_seconds}"
        SANDYARD_LOG_FORMAT  = "json"
      }

      # Only the first start of a worker reads them. Later it knows all servers, and a change must not restart it.
      template {
        destination = "${NOMAD_SECRETS_DIR}/worker.env"
        env         = true
        change_mode = "noop"
        data        = <<-EOT
          {{ range nomadService 1 (env "NOMAD_ALLOC_ID") "sandyard-server" }}
          SANDYARD_JOIN=https://{{ .Address }}:{{ .Port }}
          {{ end }}
          {{ with nomadVar "nomad/jobs/sandyard-worker" }}{{ with index . (env "SANDYARD_WORKER_NAME") }}
          SANDYARD_JOIN_TOKEN={{ . }}
          {{ end }}{{ end }}
        EOT
      }

      resources {
        cpu    = 200
        memory = 512
        # The sandboxes are not in the task's cgroup: leave the node to the worker.
        memory_max = 2048
      }
    }
  }
}
