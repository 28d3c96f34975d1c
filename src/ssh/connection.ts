import { setMaxListeners } from 'node:events'
import type { Socket } from 'node:net'
import type ssh2 from 'ssh2'
import type { SshEntry } from '../control/orgs/ssh-entries.ts'
import { interruptibleSleep } from '../lib/clock.ts'
import { makeSemaphore } from '../lib/turns/semaphore.ts'
import { authenticateSsh, type Login } from './authenticate.ts'
import { openAgentSocket } from './agent-forward.ts'
import { enterSandbox, type Entered, type SshDeps } from './enter-sandbox.ts'
import { serveForward } from './forward.ts'
import { makeInputLimit, type LimitInput } from './input-limits.ts'
import { makeRemoteForwards, type RemoteForwardDeps } from './remote-forward.ts'
import { serveSession } from './session.ts'
import type { SshConnection } from './shared-connection.ts'

/** How many sessions and forwarded connections one SSH connection may have open. */
const CHANNELS_MAX = 200
/** How many of them may be SFTP sessions, which keep requests and replies. OpenSSH's server allows ten sessions. */
const SFTP_SESSIONS_MAX = 10

/** How long a connection stays open after its channel to the sandbox has ended, in milliseconds. */
const LAST_WORDS_MS = 200

/** Serves one SSH connection until it is closed. Rejects only for a bug. */
export async function serveConnection(
  deps: SshDeps,
  { stopping, ...login }: Login & { readonly stopping: AbortSignal },
): Promise<void> {
  const { connection, socket, ident } = login
  const closed = new AbortController()
  const over = new Promise<void>((resolve) => {
    socket.once('close', () => {
      closed.abort(new Error('the SSH connection was closed'))
      resolve()
    })
  })
  connection.on('error', (error) => {
    deps.log.debug({ error }, 'an SSH connection broke')
    socket.destroy()
  })
  const onStopping = (): void => {
    connection.end()
    socket.destroySoon()
  }
  setMaxListeners(0, connection, socket) // each channel that waits adds one
  const limitInput = makeInputLimit(socket)
  stopping.addEventListener('abort', onStopping, { once: true })
  try {
    const entry = await authenticateSsh(deps, login)
    if (entry !== null && !socket.destroyed)
      serveEntry(deps, { connection, socket, ident, limitInput, entry, closed: closed.signal })
    await over
  } finally {
    stopping.removeEventListener('abort', onStopping)
  }
}

type Admitted = {
  readonly connection: ssh2.Connection
  readonly socket: Socket
  readonly ident: string
  readonly limitInput: LimitInput
  readonly entry: SshEntry
  readonly closed: AbortSignal
}

function serveEntry(deps: SshDeps, { connection, socket, ident, entry, closed, ...limits }: Admitted): void {
  socket.emit('authenticated')
  let opening: Promise<Entered> | null = null
  let agent: Promise<string | null> | null = null
  let channels = 0
  const end = (): void => {
    connection.end()
    socket.destroySoon()
  }
  /** Ends the connection after its sessions have told the person why they end. */
  const endSoon = async (): Promise<void> => {
    await interruptibleSleep(deps.clock, LAST_WORDS_MS, closed)
    end()
  }
  const enter = (): Promise<Entered> => {
    opening ??= open()
    return opening
  }
  const open = async (): Promise<Entered> => {
    try {
      const entered = await enterSandbox(deps, entry, closed)
      const { client } = entered
      closed.addEventListener('abort', () => client.close(), { once: true })
      if (closed.aborted) client.close()
      void client.closed.then(endSoon)
      return entered
    } catch (error) {
      opening = null // the next session tries again, for example after the sandbox was started
      throw error
    }
  }
  const watch = deps.callerWatcher.watch(entry.caller)
  watch.signal.addEventListener('abort', () => void endSoon(), { once: true })
  closed.addEventListener('abort', () => watch.stop(), { once: true })
  const { permits } = entry
  const shared: SshConnection = {
    connection,
    socket,
    ident,
    ...limits,
    sftpSessions: makeSemaphore(SFTP_SESSIONS_MAX),
    permits,
    closed,
    log: deps.log,
    forwardsSettled: () => remote.settled(),
    client: async () => (await enter()).client,
    agentSocket() {
      agent ??= enter().then(({ allowsAgent }) => (allowsAgent && permits.agent ? openAgentSocket(forwards) : null))
      return agent
    },
  }
  const acquire = (): (() => void) | null => {
    if (channels >= CHANNELS_MAX) return null
    channels += 1
    return () => {
      channels -= 1
    }
  }
  const forwards: RemoteForwardDeps = { shared, random: deps.random, acquire }
  const remote = makeRemoteForwards(forwards)
  connection.on('session', (accept, reject) => {
    const release = acquire()
    if (release === null) reject()
    else serveSession(shared, accept(), release)
  })
  connection.on('tcpip', (accept, reject, { destIP, destPort }) => {
    const release = permits.forwarding ? acquire() : null
    if (release === null) reject()
    else void serveForward(shared, { accept, reject }, { host: destIP, port: destPort }).finally(release)
  })
  connection.on('request', (accept, reject, name: string, info) => {
    if (!permits.forwarding) reject?.()
    else remote.serve({ name, info: { ...info } }, { accept: (port) => accept?.(port), reject: () => reject?.() })
  })
}
