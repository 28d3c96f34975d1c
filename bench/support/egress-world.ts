/**
 * Measures the ways out of a sandbox in a network namespace of its own, with a server in another one. Prints the samples as
 * JSON. `bench/egress.ts` starts it.
 */
import { spawn, spawnSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { asId, type RunId } from '../../src/domain/ids.ts'
import type { EgressSecrets, RunInterception } from '../../src/domain/network/interception.ts'
import type { NetworkSpec } from '../../src/domain/spec/spec.ts'
import { makeAuthority } from '../../src/lib/make-authority.ts'
import { openSandboxNetworks } from '../../src/worker/network/open-sandbox-networks.ts'
import { makeNamedWorld } from '../../test/support/named-world.ts'
import { OUTSIDE } from '../../test/support/network-world.ts'
import { DEFAULT_NETWORK, networksOptions, networkWith, NO_DENIALS } from '../../test/support/networks.ts'
import { readCpuSeconds } from './process-cpu.ts'

export type PeerAsk =
  | {
      readonly kind: 'serve'
      readonly plainPort: number
      readonly tlsPort: number
      readonly certFile: string
      readonly keyFile: string
    }
  | { readonly kind: 'lookUp'; readonly server: string; readonly name: string }
  | {
      readonly kind: 'fetch'
      readonly address: string
      readonly port: number
      readonly host: string
      readonly isTls: boolean
      readonly bytes: number
    }

/** The samples of one way: MB/s, MB for each processor second of the egress process, and milliseconds of a connection. */
export type WaySamples = { rates: number[]; perCpuSecond: number[]; latenciesMs: number[] }

const NAME = 'server.example'
const [PLAIN_PORT, TLS_PORT] = [8_000, 8_443]
const BYTES = 512 * 1024 * 1024
const ROUNDS = 5
const CONNECTIONS = 40
const EGRESS_USER = '60998'

type Way = { readonly network: NetworkSpec | null; readonly given?: EgressSecrets; readonly isTls: boolean }

await using world = await makeNamedWorld({ [NAME]: { addresses: [OUTSIDE.public], ttlSecs: 3_600 } })
await using server = startPeer('/run/netns/outside')
await server.ask({ kind: 'serve', plainPort: PLAIN_PORT, tlsPort: TLS_PORT, ...world.certificate })
await using options = await networksOptions()
const networks = await openSandboxNetworks(options)
const byName = networkWith([{ destination: { domain: NAME } }])
const interception: RunInterception = {
  intercepted_ports: [TLS_PORT],
  bypass: [],
  block_quic: true,
  verify_upstream: false,
  scoped_verify_upstream: [],
  upstream_ca_certs: [],
  scoped_upstream_ca_certs: [],
  cache: { capacity: 1_000, validity_hours: 24 },
  authority: await makeAuthority('bench', { nowMs: Date.now() }),
}
const ways: Readonly<Record<string, Way>> = {
  bare: { network: null, isTls: false },
  plain: { network: DEFAULT_NETWORK, isTls: false },
  'by name, HTTP': { network: byName, isTls: false },
  'bare TLS': { network: null, isTls: true },
  'plain TLS': { network: DEFAULT_NETWORK, isTls: true },
  'by name, TLS': { network: byName, isTls: true },
  'intercepted TLS': { network: DEFAULT_NETWORK, given: { secrets: [], interception }, isTls: true },
}
const samples: Record<string, WaySamples> = {}
for (const [name, way] of Object.entries(ways)) samples[name] = await measure(name, way)
await networks.close()
process.stdout.write(`${JSON.stringify(samples)}\n`)

async function measure(name: string, { network, given, isTls }: Way): Promise<WaySamples> {
  const run = asId<RunId>(name.replaceAll(/\W/g, '-'))
  const attached = network === null ? null : await networks.attach(run, network, NO_DENIALS, given)
  await using client = startPeer(attached?.netnsPath ?? null)
  const [resolver] = attached?.resolvers ?? []
  if (resolver !== undefined) await client.ask({ kind: 'lookUp', server: resolver, name: NAME })
  const target = { address: OUTSIDE.public, port: isTls ? TLS_PORT : PLAIN_PORT, host: NAME, isTls }
  const found: WaySamples = { rates: [], perCpuSecond: [], latenciesMs: [] }
  for (let n = 0; n < CONNECTIONS; n++) found.latenciesMs.push(await client.ask({ kind: 'fetch', ...target, bytes: 0 }))
  for (let round = 0; round < ROUNDS; round++) {
    const before = await readCpuSeconds(egressProcesses())
    const ms = await client.ask({ kind: 'fetch', ...target, bytes: BYTES })
    const cpu = (await readCpuSeconds(egressProcesses())) - before
    found.rates.push(BYTES / 1e6 / (ms / 1000))
    if (cpu > 0.05) found.perCpuSecond.push(BYTES / 1e6 / cpu)
  }
  if (attached !== null) await networks.detach(run)
  return found
}

function egressProcesses(): readonly number[] {
  const { stdout } = spawnSync('pgrep', ['-U', EGRESS_USER], { encoding: 'utf8' })
  return stdout.split('\n').filter(Boolean).map(Number)
}

/** Starts a peer in the network namespace at `path`, or in this one. */
function startPeer(path: string | null) {
  const script = fileURLToPath(new URL('egress-peer.ts', import.meta.url))
  const entered = path === null ? [] : ['nsenter', `--net=${path}`]
  const [file = '', ...args] = [...entered, process.execPath, script]
  const child = spawn(file, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
  const waiting = new Map<number, PromiseWithResolvers<number>>()
  let next = 0
  child.on('message', ({ id, result, error }: { id: number; result?: number; error?: string }) => {
    if (result === undefined) waiting.get(id)?.reject(new Error(error))
    else waiting.get(id)?.resolve(result)
  })
  return {
    ask(ask: PeerAsk): Promise<number> {
      const answer = Promise.withResolvers<number>()
      const id = next++
      waiting.set(id, answer)
      child.send({ id, ask })
      return answer.promise
    },
    [Symbol.asyncDispose]: () => {
      child.kill('SIGKILL')
      return Promise.resolve()
    },
  }
}
