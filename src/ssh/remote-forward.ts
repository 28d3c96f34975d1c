import type { Duplex } from 'node:stream'
import type ssh2 from 'ssh2'
import { ConnectFailure } from '../channel-client/tcp.ts'
import { ChannelLost } from '../channel-client/connection.ts'
import type { Random } from '../lib/random.ts'
import { carryStream } from './carry.ts'
import { SshRefusal } from './enter-sandbox.ts'
import { ListenFailure, listenInSandbox, type Incoming, type ListenTarget, type SandboxListener } from './sandbox-listener.ts' // prettier-ignore
import type { SshConnection } from './shared-connection.ts'

export type RemoteForwardDeps = {
  readonly shared: SshConnection
  readonly random: Random
  /** Counts a channel of the connection. Returns null at the limit. */
  readonly acquire: () => (() => void) | null
}

/** How many listeners one SSH connection may have in its sandbox. Each of them is a process there. */
const LISTENERS_MAX = 16

type ForwardTarget = Exclude<ListenTarget, { readonly kind: 'agent' }>
type Request = { readonly name: string; readonly info: Readonly<Record<string, unknown>> }
type Answer = { readonly accept: (chosenPort?: number) => void; readonly reject: () => void }

/** Requests of a client to listen in the sandbox (`-R`), for ports and for Unix sockets. */
export type RemoteForwards = {
  serve(request: Request, answer: Answer): void
  /** Resolves when all requests so far are answered. Never rejects. */
  settled(): Promise<unknown>
}

/** Makes the remote forwards of a connection. They end with its channel to the sandbox. */
export function makeRemoteForwards(deps: RemoteForwardDeps): RemoteForwards {
  let pending: Promise<unknown> = Promise.resolve()
  const listeners = new Map<string, SandboxListener>()
  let count = 0

  const listen = async (target: ForwardTarget, { accept, reject }: Answer): Promise<void> => {
    if (count >= LISTENERS_MAX) {
      reject()
      return
    }
    count += 1
    try {
      const client = await deps.shared.client()
      const listener = await listenInSandbox({ client, random: deps.random }, target, (incoming) => {
        void serveIncoming(deps, incoming, () => openChannel(deps.shared.connection, target, incoming))
      })
      // A client that let the port be chosen cancels it by the port that it got.
      const name = nameOf(target.kind === 'tcp' ? { ...target, port: Number(listener.name) } : target)
      listeners.set(name, listener)
      void listener.closed.then(() => {
        listeners.delete(name)
        count -= 1
      })
      accept(target.kind === 'tcp' ? Number(listener.name) : undefined)
    } catch (error) {
      count -= 1
      if (!isExpected(error)) deps.shared.log.warn({ error }, 'an SSH client could not listen in a sandbox')
      reject()
    }
  }

  const serve = ({ name, info }: Request, answer: Answer): void => {
    const target = targetOf(info)
    if (target === null) answer.reject()
    else if (name === 'tcpip-forward' || name === 'streamlocal-forward@openssh.com')
      pending = Promise.all([pending, listen(target, answer)])
    else if (name === 'cancel-tcpip-forward' || name === 'cancel-streamlocal-forward@openssh.com') {
      const listener = listeners.get(nameOf(target))
      listener?.close()
      if (listener === undefined) answer.reject()
      else answer.accept()
    } else answer.reject()
  }
  return { serve, settled: () => pending }
}

/** Carries what connected to a listener to the client, over a channel that `open` opens. Never rejects. */
export async function serveIncoming(
  { shared, acquire }: Pick<RemoteForwardDeps, 'shared' | 'acquire'>,
  incoming: Incoming,
  open: () => Promise<ssh2.ServerChannel>,
): Promise<void> {
  const release = acquire()
  if (release === null) {
    incoming.refuse()
    return
  }
  let opened: ssh2.ServerChannel | null = null
  try {
    const channel = await open()
    opened = channel
    await shared.limitInput(channel, async () => {
      const stream: Duplex = await incoming.fetch()
      await carryStream(shared, stream, channel)
    })
  } catch (error) {
    incoming.refuse()
    opened?.close()
    if (!isExpected(error)) shared.log.debug({ error }, 'a connection of a sandbox could not be forwarded')
  } finally {
    release()
  }
}

function isExpected(error: unknown): boolean {
  return [ListenFailure, SshRefusal, ChannelLost, ConnectFailure].some((kind) => error instanceof kind)
}

function openChannel(
  connection: ssh2.Connection,
  target: ForwardTarget,
  { at, host, port }: Incoming,
): Promise<ssh2.ServerChannel> {
  return new Promise((resolve, reject) => {
    const done = (error: Error | undefined, channel: ssh2.ServerChannel): void => {
      if (error === undefined) resolve(channel)
      else reject(error)
    }
    if (target.kind === 'tcp') connection.forwardOut(target.host, Number(at), host, port, done)
    else connection.openssh_forwardOutStreamLocal(target.path, done)
  })
}

function nameOf(target: ForwardTarget): string {
  return target.kind === 'tcp' ? `tcp ${target.host} ${String(target.port)}` : `unix ${target.path}`
}

const HOST_MAX_CHARS = 255
/** The longest path of a Unix socket (unix(7)). */
const PATH_MAX_BYTES = 107

function targetOf(info: Readonly<Record<string, unknown>>): ForwardTarget | null {
  const { bindAddr: host, bindPort: port, socketPath: path } = info
  if (typeof host === 'string' && typeof port === 'number' && host.length <= HOST_MAX_CHARS && port <= 0xffff)
    return { kind: 'tcp', host, port }
  if (
    typeof path === 'string' &&
    path.startsWith('/') &&
    Buffer.byteLength(path) <= PATH_MAX_BYTES &&
    !path.includes('\0') &&
    !path.includes('\n')
  )
    return { kind: 'unix', path }
  return null
}
