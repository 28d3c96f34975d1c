import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { asId, type RunId } from '../../src/domain/ids.ts'
import type { EgressSecrets } from '../../src/domain/network/interception.ts'
import type { NetworkSpec } from '../../src/domain/spec/spec.ts'
import type { SandboxNetworks } from '../../src/worker/network/sandbox-network.ts'
import { makeCertificate, type TestCertificate } from './certificates.ts'
import { ip, OUTSIDE } from './network-world.ts'
import { NO_DENIALS } from './networks.ts'

/** What a host of the named world serves or asks. */
export type HostAsk =
  /** Answers DNS queries for these names at an address, over UDP and TCP. Others don't exist. */
  | { readonly kind: 'serveDns'; readonly address: string; readonly names: Readonly<Record<string, DnsEntry>> }
  /** Replaces the names. */
  | { readonly kind: 'setNames'; readonly names: Readonly<Record<string, DnsEntry>> }
  /** Answers HTTP on port 80 and 8080, and HTTPS on 443, of all addresses. The reply tells what arrived. */
  | { readonly kind: 'serveWeb'; readonly certFile: string; readonly keyFile: string }
  /** Answers each datagram to this port of an address, from that address. */
  | { readonly kind: 'serveDatagrams'; readonly address: string; readonly port: number }
  /** Speaks first on this port, as SSH does. */
  | { readonly kind: 'serveBanner'; readonly port: number }
  /** Sends back what arrives on this port, until the client ends. */
  | { readonly kind: 'serveEcho'; readonly port: number }
  | { readonly kind: 'lookUp'; readonly server: string; readonly name: string }
  /** Asks for records of type HTTPS (RFC 9460), and tells the response code and the number of answers. */
  | { readonly kind: 'lookUpService'; readonly server: string; readonly name: string }
  | ({ readonly kind: 'get' } & Get)
  | { readonly kind: 'datagram'; readonly address: string; readonly port: number }
  | { readonly kind: 'readBanner'; readonly address: string; readonly port: number }
  /** Writes bytes and tells what came back, as hex, when the other side ends or after a pause. */
  | { readonly kind: 'write'; readonly address: string; readonly port: number; readonly hex: string }
  /** All requests that arrived at the web servers since the last call. */
  | { readonly kind: 'takeRequests' }

export type DnsEntry = { readonly addresses: readonly string[]; readonly ttlSecs?: number; readonly alias?: string }

/** An HTTP request. `tls` is the server name that is sent; the certificate is not checked unless `ca` is given. */
export type Get = {
  readonly address: string
  readonly port: number
  readonly host: string
  readonly path?: string
  readonly tls?: string | null | undefined
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: string
  readonly caFile?: string
}

export type HostReply = { readonly id: number; readonly result: string }

/** A process in a network namespace. Its answers are texts; an error is its code. */
export type NamedHost = {
  ask(ask: HostAsk): Promise<string>
  close(): Promise<void>
}

/** Starts a host in the network namespace at `path`. */
export function startHost(path: string): NamedHost {
  const script = fileURLToPath(new URL('named-host-process.ts', import.meta.url))
  const child = spawn('nsenter', [`--net=${path}`, process.execPath, script], {
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    env: { ...process.env, NODE_TEST_CONTEXT: '', NODE_TLS_REJECT_UNAUTHORIZED: undefined },
  })
  const waiting = new Map<number, (result: string) => void>()
  let next = 0
  child.on('message', ({ id, result }: HostReply) => {
    waiting.get(id)?.(result)
    waiting.delete(id)
  })
  child.on('exit', () => {
    for (const resolve of waiting.values()) resolve('the host ended')
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

export type NamedWorld = AsyncDisposable & { readonly outside: NamedHost; readonly certificate: TestCertificate }

/** A network namespace `outside` with the addresses of `OUTSIDE`, a resolver for `names` and web servers. */
export async function makeNamedWorld(names: Readonly<Record<string, DnsEntry>>): Promise<NamedWorld> {
  const folder = mkdtempSync(join(tmpdir(), 'sandyard-names-'))
  const certificate = await makeCertificate(folder, Object.keys(names))
  const { hostPublic: _, hostPrivate, ...addresses } = OUTSIDE
  // The hosts are behind a router, because the subnets of a worker are denied to its sandboxes.
  await ip([
    'netns add outside',
    'link add w0 type veth peer name eth0 netns outside',
    `addr add ${hostPrivate}/24 dev w0`,
    'link set w0 up',
    `route add default via ${addresses.private}`,
  ])
  const own = Object.values(addresses).map(
    (address) => `addr add ${address}/${address === addresses.private ? '24' : '32'} dev eth0`,
  )
  await ip(['link set lo up', ...own, 'link set eth0 up', `route add default via ${hostPrivate}`], 'outside')
  const outside = startHost('/run/netns/outside')
  await outside.ask({ kind: 'serveDns', address: OUTSIDE.resolver, names })
  await outside.ask({ kind: 'serveWeb', ...certificate })
  return {
    outside,
    certificate,
    [Symbol.asyncDispose]: async () => {
      await outside.close()
      rmSync(folder, { recursive: true })
    },
  }
}

/** Attaches the network of a run and starts a host in it. Disposing of the value ends both. */
export async function attachNamedInmate(
  networks: SandboxNetworks,
  name: string,
  network: NetworkSpec,
  given?: EgressSecrets,
) {
  const run = asId<RunId>(name)
  const { netnsPath, resolvers, ipv4, published } = await networks.attach(run, network, NO_DENIALS, given)
  const host = startHost(netnsPath)
  const gateway = resolvers[0] ?? ''
  return {
    run,
    host,
    gateway,
    address: ipv4 ?? '',
    published,
    lookUp: (asked: string) => host.ask({ kind: 'lookUp', server: gateway, name: asked }),
    datagram: () => host.ask({ kind: 'datagram', address: OUTSIDE.public, port: 9_000 }),
    /** A request to `good.example`, unless the fields say otherwise. */
    web: (get: Partial<Get> = {}) => {
      const tls = 'tls' in get ? get.tls : 'good.example'
      const ask = { address: OUTSIDE.public, port: 443, host: tls ?? 'good.example', ...get }
      return host.ask({ kind: 'get', ...ask, ...(tls === undefined ? {} : { tls }) })
    },
    [Symbol.asyncDispose]: async () => {
      await host.close()
      await networks.detach(run)
    },
  }
}
