import { createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import ssh2 from 'ssh2'
import type { ControlDeps } from '../control/make-deps.ts'
import { openSshHostKey } from '../control/orgs/ssh-entries.ts'
import type { AuthenticationRateLimiter } from '../control/requests/request-rate-limiter.ts'
import { sshFingerprint } from '../domain/orgs/ssh-key.ts'
import { rateLimitAddress } from '../lib/rate-limit-address.ts'
import type { PacedReads } from '../lib/streams/pace-reads.ts'
import { makePiecePacer } from '../lib/turns/piece-pacer.ts'
import { serveConnection } from './connection.ts'
import { countPackets, pacePackets } from './pace-packets.ts'
import { keepKeysAsObjects } from './protocol-state.ts'

export type SshServerOptions = {
  readonly host: string
  readonly port: number
  /** How many connections may be open, in all and of one address. */
  readonly connections: { readonly capacity: number; readonly perAddress: number }
  /** Counts refused keys of an address, together with those of the API. */
  readonly rates: AuthenticationRateLimiter
}

/** A running SSH server. Disposing it ends its connections. */
export type SshServer = {
  readonly port: number
  /** The fingerprint of the host key, as SSH clients show it. */
  readonly fingerprint: string
} & AsyncDisposable

/**
 * The algorithms that clients may choose: those that OpenSSH has had by default since version 7, without SHA-1 and CBC.
 * Compression is off, because it would cost memory for each connection before its client is known. Key exchanges that take the thread
 * longer are off too, and every client has a faster one: nistp521 took 6.2 ms, nistp384 2.9 and group16 3.1 (AMD EPYC).
 */
const ALGORITHMS = {
  kex: ['curve25519-sha256', 'curve25519-sha256@libssh.org', 'ecdh-sha2-nistp256', 'diffie-hellman-group14-sha256'],
  cipher: [
    'aes128-gcm@openssh.com',
    'chacha20-poly1305@openssh.com',
    'aes256-gcm@openssh.com',
    'aes128-ctr',
    'aes256-ctr',
  ],
  hmac: ['hmac-sha2-256-etm@openssh.com', 'hmac-sha2-512-etm@openssh.com', 'hmac-sha2-256', 'hmac-sha2-512'],
  compress: ['none'],
} satisfies ssh2.Algorithms

/** How often a silent client is asked whether it is there, and how often it may not answer. */
const KEEPALIVE_MS = 30_000
const KEEPALIVE_MISSES = 4

/** Makes a host key. ssh2 1.17 writes one key of 200 in a form that it can't read itself (24 of 5,000), so each one is read. */
export function makeHostKey(): { readonly private: string; readonly public: string } {
  for (;;) {
    const made = ssh2.utils.generateKeyPairSync('ed25519')
    if (!(ssh2.utils.parseKey(made.private) instanceof Error)) return made
  }
}

/** Starts the SSH server. Rejects with the error of the system if the port can't be used. */
export async function startSshServer(deps: ControlDeps, options: SshServerOptions): Promise<SshServer> {
  const hostKey = await openSshHostKey(deps, makeHostKey)
  const stopping = new AbortController()
  /** By the address and port of the client: the library doesn't tell which socket a connection has. */
  const open = new Map<string, OpenSocket>()
  const perAddress = new Map<string, number>()
  const running = new Set<Promise<void>>()
  const pacer = makePiecePacer()
  const withPacer = { ...deps, pacer }
  const protocol = new ssh2.Server({
    hostKeys: [hostKey.private],
    algorithms: ALGORITHMS,
    ident: 'Sandyard',
    keepaliveInterval: KEEPALIVE_MS,
    keepaliveCountMax: KEEPALIVE_MISSES,
  })
  protocol.on('connection', (connection, info) => {
    const found = open.get(peerKey(info.ip, info.port))
    if (found === undefined) {
      connection.end()
      return
    }
    const { socket, reads } = found
    countPackets(connection, socket, reads)
    connection.on('handshake', () => {
      keepKeysAsObjects(connection)
    })
    const address = rateLimitAddress(socket.remoteAddress)
    const served = serveConnection(withPacer, {
      connection,
      socket,
      ident: info.header.identRaw,
      address,
      rates: options.rates,
      stopping: stopping.signal,
    })
      .catch((error: unknown) => {
        deps.log.error({ error }, 'an SSH connection failed')
        socket.destroy()
      })
      .finally(() => running.delete(served))
    running.add(served)
  })
  const listener = createServer({ noDelay: true }, (socket) => {
    const address = rateLimitAddress(socket.remoteAddress)
    const ofAddress = perAddress.get(address) ?? 0
    socket.on('error', () => {
      // a client that is gone; `close` follows
    })
    const hasRoom = open.size < options.connections.capacity && ofAddress < options.connections.perAddress
    if (!hasRoom || socket.remoteAddress === undefined) {
      socket.destroy()
      return
    }
    const key = peerKey(socket.remoteAddress, socket.remotePort)
    open.set(key, { socket, reads: pacePackets(socket, pacer.paceOf(address)) })
    perAddress.set(address, ofAddress + 1)
    socket.once('close', () => {
      open.delete(key)
      const left = (perAddress.get(address) ?? 1) - 1
      if (left === 0) perAddress.delete(address)
      else perAddress.set(address, left)
    })
    protocol.injectSocket(socket)
    closeUnauthenticated(deps, socket)
  })
  await listen(listener, options)
  return {
    port: portOf(listener.address()),
    fingerprint: sshFingerprint(Buffer.from(hostKey.public.split(' ')[1] ?? '', 'base64')),
    async [Symbol.asyncDispose]() {
      const closed = new Promise((resolve) => listener.close(resolve))
      stopping.abort(new Error('the server is closing'))
      await Promise.all(running)
      for (const { socket } of open.values()) socket.destroy()
      await closed
    },
  }
}

type OpenSocket = { readonly socket: Socket; readonly reads: PacedReads }

function peerKey(address: string | undefined, port: number | undefined): string {
  return `${address ?? ''} ${String(port)}`
}

/** How long a client may take from connecting to a proved key. OpenSSH's server allows two minutes. */
const LOGIN_LIMIT_MS = 60_000

/** Ends a connection whose login takes too long. `serveConnection` emits `authenticated` on the socket. */
function closeUnauthenticated({ clock }: Pick<ControlDeps, 'clock'>, socket: Socket): void {
  const closed = new AbortController()
  socket.once('close', () => {
    closed.abort(new Error('closed'))
  })
  socket.once('authenticated', () => {
    closed.abort(new Error('authenticated'))
  })
  clock.sleep(LOGIN_LIMIT_MS, closed.signal).then(
    () => socket.destroy(),
    () => undefined,
  )
}

function listen(server: Server, { host, port }: SshServerOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen({ host, port }, () => {
      server.off('error', reject)
      resolve()
    })
  })
}

function portOf(address: AddressInfo | string | null): number {
  return typeof address === 'object' && address !== null ? address.port : 0
}
