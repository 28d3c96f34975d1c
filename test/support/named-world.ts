import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'

/** What a host of the named world serves or asks. */
export type HostAsk =
  /** Answers DNS queries for these names at an address, over UDP and TCP. Others don't exist. */
  | { readonly kind: 'serveDns'; readonly address: string; readonly names: Readonly<Record<string, DnsEntry>> }
  /** Replaces the names. */
  | { readonly kind: 'setNames'; readonly names: Readonly<Record<string, DnsEntry>> }
  /** Answers HTTP on port 80 and 8080, and HTTPS on 443, of all addresses. The reply tells what arrived. */
  | { readonly kind: 'serveWeb'; readonly certFile: string; readonly keyFile: string }
  | { readonly kind: 'serveDatagrams'; readonly port: number }
  /** Speaks first on this port, as SSH does. */
  | { readonly kind: 'serveBanner'; readonly port: number }
  | { readonly kind: 'lookUp'; readonly server: string; readonly name: string }
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
