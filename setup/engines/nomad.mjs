// A real Nomad of one node (server and client in one process) with the driver raw_exec, in a machine of its own (machine.mjs).
// 1.6 is the last line of releases under the MPL.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { spawnSync } from 'node:child_process'
import { ensurePrograms, go } from './engine-programs.mjs'
import { runInMachine, startMachine, waitFor } from './machine.mjs'

const version = '1.6.1'
/** The module points at a folder of its repository that a Go module doesn't contain. This is the folder's commit. */
const apiVersion = 'v0.0.0-20230721134942-515895c7690c'
const startLimitMs = 60_000
/** The address of the node. The tests listen there too. */
export const nodeAddress = '10.245.0.1'

/** Makes the program in a folder, and returns it. */
export function ensureNomadPrograms(root) {
  return ensurePrograms(root, {
    name: `nomad-${version}`,
    archive: 'nomad',
    takes: '8 minutes',
    build(making) {
      const source = join(making, 'source')
      mkdirSync(source, { recursive: true })
      writeFileSync(join(source, 'go.mod'), moduleFile)
      const output = ['-o', join(making, 'bin', 'nomad'), 'github.com/hashicorp/nomad']
      go(['build', '-tags=release', '-trimpath', '-ldflags=-s -w', ...output], { cwd: source })
    },
  })
}

const moduleFile = `module sandyard-test-nomad

go 1.20

require github.com/hashicorp/nomad v${version}

replace (
	github.com/Microsoft/go-winio => github.com/endocrimes/go-winio v0.4.13-0.20190628114223-fb47a8b41948
	github.com/armon/go-metrics => github.com/armon/go-metrics v0.0.0-20230509193637-d9ca9af9f1f9
	github.com/hashicorp/hcl => github.com/hashicorp/hcl v1.0.1-0.20201016140508-a07e7d50bbee
	github.com/hashicorp/nomad/api => github.com/hashicorp/nomad/api ${apiVersion}
)
`

/** Starts Nomad from the folder of `ensureNomadPrograms`. \`tools/nomad\` of the machine works in its network. */
export async function startNomad(programs) {
  const machine = await startMachine(programs)
  try {
    const { folder } = machine
    for (const name of ['tools', 'state']) mkdirSync(join(folder, name))
    writeFileSync(join(folder, 'tools/nomad'), `#!/bin/sh\nexec ${programs}/bin/nomad "$@"\n`, { mode: 0o755 })
    writeFileSync(join(folder, 'agent.json'), JSON.stringify(agentConfig(machine)))
    runInMachine(machine, 'sh', ['-c', `ip link add node0 type bridge && ip addr add ${nodeAddress}/24 dev node0 && ip link set node0 up`]) // prettier-ignore
    machine.part('nomad', `exec ${folder}/engine/bin/nomad agent -config ${folder}/agent.json`)
    await waitFor(machine, 'nomad', startLimitMs, () => isReady(machine))
    return machine
  } catch (error) {
    await machine.close()
    throw error
  }
}

function agentConfig({ folder, name }) {
  return {
    data_dir: join(folder, 'state'),
    bind_addr: '0.0.0.0',
    name: 'node',
    disable_update_check: true,
    advertise: { http: nodeAddress, rpc: nodeAddress, serf: nodeAddress },
    server: { enabled: true, bootstrap_expect: 1, raft_multiplier: 1 },
    client: {
      enabled: true,
      network_interface: 'node0',
      cgroup_parent: name,
      // Jobs set longer times to stop than the default allows.
      max_kill_timeout: '10m',
      options: {
        // The first four would ask the metadata service of a cloud.
        'fingerprint.denylist': 'env_aws,env_gce,env_azure,env_digitalocean,consul,vault',
        'driver.allowlist': 'raw_exec',
      },
    },
    plugin: [{ raw_exec: [{ config: [{ enabled: true }] }] }],
  }
}

function isReady(machine) {
  const args = [`--net=/proc/${machine.pid}/ns/net`, join(machine.folder, 'tools/nomad'), 'node', 'status', '-json']
  const { status, stdout } = spawnSync('nsenter', args, { encoding: 'utf8' })
  if (status !== 0) return false
  const [node] = JSON.parse(stdout)
  return node?.Status === 'ready' && node.Drivers?.raw_exec?.Healthy === true
}
