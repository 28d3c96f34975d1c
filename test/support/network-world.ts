import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { systemClock } from '../../src/lib/clock.ts'
import { runCommand } from '../../src/lib/run-command.ts'

/** The requests to a prober. Each result is a word such as `connected`, or a text. */
export type Ask =
  | { readonly kind: 'serveTcp'; readonly host: string; readonly port: number; readonly replyHex?: string }
  | { readonly kind: 'serveUdp'; readonly host: string; readonly port: number; readonly replyHex?: string }
  | {
      readonly kind: 'tcp'
      readonly host: string
      readonly port: number
      readonly hold?: boolean
      readonly from?: string
      readonly timeoutMs?: number
    }
  | { readonly kind: 'echo' }
  | { readonly kind: 'release' }
  | {
      readonly kind: 'udp'
      readonly host: string
      readonly port: number
      readonly from?: string
      readonly text?: string
    }
  | { readonly kind: 'resolve'; readonly server: string; readonly name: string; readonly timeoutMs?: number }
  | { readonly kind: 'dnsOverTcp'; readonly server: string; readonly queryHex: string }
  | { readonly kind: 'floodDns'; readonly server: string; readonly perSecond: number; readonly forMs: number }
  | { readonly kind: 'received' }
export type Reply = { readonly id: number; readonly result: string }

/** A process inside a network namespace that serves and connects there. */
export type Prober = {
  ask(ask: Ask): Promise<string>
  close(): Promise<void>
}

/** Starts a prober in the network namespace at `path`, or in this process's namespace if `path` is null. */
export function startProber(path: string | null): Prober {
  const script = fileURLToPath(new URL('network-prober.ts', import.meta.url))
  const entered = path === null ? [] : ['nsenter', `--net=${path}`]
  const [file = '', ...args] = [...entered, process.execPath, script]
  const env = { ...process.env, NODE_TEST_CONTEXT: '' }
  const child = spawn(file, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'], env })
  const waiting = new Map<number, (result: string) => void>()
  let next = 0
  child.on('message', (message) => {
    if (typeof message !== 'object' || !('id' in message) || !('result' in message)) return
    waiting.get(Number(message.id))?.(String(message.result))
  })
  child.on('exit', () => {
    for (const resolve of waiting.values()) resolve('prober ended')
  })
  return {
    ask: (ask) =>
      new Promise((resolve) => {
        const id = next++
        waiting.set(id, resolve)
        child.send({ id, ask })
      }),
    close: async () => {
      if (child.exitCode !== null || child.signalCode !== null) return
      const ended = once(child, 'exit')
      child.kill('SIGKILL')
      await ended
    },
  }
}

/**
 * The addresses of simulated hosts outside of this machine: public, private and link-local, the metadata address, a
 * resolver.
 */
export const OUTSIDE = {
  public: '44.0.113.10',
  otherPublic: '44.0.113.11',
  /** A public address that the operator's settings deny. */
  hardDenied: '44.0.113.12',
  resolver: '44.0.113.53',
  private: '10.66.0.10',
  linkLocal: '169.254.7.7',
  metadata: '169.254.169.254',
  /** This machine's own addresses on the public and the private network. */
  hostPublic: '44.0.113.1',
  hostPrivate: '10.66.0.1',
} as const

/** The TCP and UDP ports of the outside world's hosts. */
export const OUTSIDE_PORTS = [80, 443, 8443] as const

/** The address that the resolver returns for every name that does not start with `rebind`. */
export const RESOLVED = '44.0.113.80'

/**
 * Creates a network namespace with all addresses of `OUTSIDE`, connects it to this process's namespace, and starts its
 * servers.
 */
export async function makeOutsideWorld(): Promise<Prober> {
  const { hostPublic, hostPrivate, ...outside } = OUTSIDE
  await ip([
    'netns add outside',
    'link add w0 type veth peer name eth0 netns outside',
    `addr add ${hostPublic}/24 dev w0`,
    `addr add ${hostPrivate}/24 dev w0`,
    'link set w0 up',
    'route add 169.254.0.0/16 dev w0',
    'route add default via 44.0.113.10',
  ])
  await ip(
    [
      'link set lo up',
      ...Object.values(outside).map((address) => `addr add ${address}/24 dev eth0`),
      'link set eth0 up',
      `route add default via ${hostPublic}`,
    ],
    'outside',
  )
  const world = startProber('/run/netns/outside')
  for (const port of OUTSIDE_PORTS) {
    await world.ask({ kind: 'serveTcp', host: '0.0.0.0', port })
    await world.ask({ kind: 'serveUdp', host: '0.0.0.0', port })
  }
  const replyHex = Buffer.from(RESOLVED.split('.').map(Number)).toString('hex')
  await world.ask({ kind: 'serveUdp', host: OUTSIDE.resolver, port: 53, replyHex })
  await world.ask({ kind: 'serveTcp', host: OUTSIDE.resolver, port: 53, replyHex })
  return world
}

/** Repeats a request until its result is `wished` or `limitMs` have passed. Resolves with the last result. */
export async function askUntil(prober: Prober, ask: Ask, wished: string, limitMs = 3_000): Promise<string> {
  const end = systemClock.monotonicMs() + limitMs
  for (;;) {
    const result = await prober.ask(ask)
    if (result === wished || systemClock.monotonicMs() > end) return result
  }
}

/** Runs iproute2 commands, in the host's namespace or a named one. */
export async function ip(lines: readonly string[], namespace?: string): Promise<void> {
  const where = namespace === undefined ? [] : ['-n', namespace]
  await runCommand('ip', [...where, '-b', '-'], { timeoutMs: 10_000, input: `${lines.join('\n')}\n` })
}
