# The control plane: `nomad job run sandyard-server.nomad.hcl`. docs/guide/nomad.md explains it.
#
# The Nomad variable nomad/jobs/sandyard-server has the items DATABASE_URL, SANDYARD_SECRET_KEY, SANDYARD_API_KEY and, for
# migrations by another role, DATABASE_OWNER_URL.

variable "datacenters" {
  type    = list(string)
  default = ["*"]
}

variable "servers" {
  type    = number
  default = 2
}

# The program of the Debian package, on each node.
variable "program" {
  type    = string
  default = "/usr/bin/sandyard"
}

# A server needs no privileges.
variable "user" {
  type    = string
  default = "nobody"
}

job "sandyard-server" {
  datacenters = var.datacenters
  type        = "service"

  # One server after the other. Each is ready before the next one stops.
  update {
    max_parallel     = 1
    min_healthy_time = "3s"
    healthy_deadline = "3m"
    auto_revert      = true
  }

  group "server" {
    count = var.servers

    spread {
      attribute = "${node.unique.id}"
    }

    network {
      port "https" {}
    }

    service {
      name     = "sandyard-server"
      provider = "nomad"
      port     = "https"

      # A server listens when it is ready. Nomad before 1.9.6 can't check by HTTPS without the certificate's authority.
      check {
        type     = "tcp"
        interval = "3s"
        timeout  = "3s"
      }
    }

    task "serve" {
      driver         = "raw_exec"
      user           = var.user
      shutdown_delay = "3s" # its service leaves first
      kill_signal    = "SIGTERM"
      kill_timeout   = "30s"

      config {
        command = var.program
        args    = ["serve"]
      }

      env {
        SANDYARD_HOST          = "0.0.0.0"
        SANDYARD_PORT          = "${NOMAD_PORT_https}"
        SANDYARD_ADVERTISE_URL = "https://${NOMAD_ADDR_https}"
        SANDYARD_SSH_PORT      = "off"
        SANDYARD_DATA_DIR      = "${NOMAD_TASK_DIR}/data"
        SANDYARD_LOG_FORMAT    = "json"
      }

      template {
        destination = "${NOMAD_SECRETS_DIR}/server.env"
        env         = true
        data        = <<-EOT
          {{ with nomadVar "nomad/jobs/sandyard-server" }}{{ range .Tuples }}
          {{ .K }}={{ .V }}
          {{ end }}{{ end }}
        EOT
      }

      resources {
        cpu        = 200
        memory     = 384
        memory_max = 1024
      }
    }
  }
}
