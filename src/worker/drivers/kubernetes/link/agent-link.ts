import { constants } from 'node:os'
import type { Duplex } from 'node:stream'
import { makeStreamHolds } from '../../../../lib/streams/stream-holds.ts'
import type { Pace } from '../../../../lib/turns/piece-pacer.ts'
import { takeAtPace } from '../../../../lib/turns/take-at-pace.ts'
import { ExecFailure, type GuestProcess } from '../../../channel/guest.ts'
import { encodeLimits } from '../spec/pod-limits.ts'
import { AgentProtocolError, encodeAgentMessage, makeAgentMessageReader, type AgentMessage } from './agent-messages.ts'
import { makeLinkedProcess, type LinkedProcess } from './linked-process.ts'

/** A process to start by `guest/agent.pl`. */
export type AgentStart = {
  readonly command: readonly string[]
  /** `KEY=VALUE` items that override the sandbox's. */
  readonly env: readonly string[]
  /** Whether the process gets no variable of the sandbox. */
  readonly hasOwnEnv: boolean
  readonly cwd: string | null
  readonly user: string | null
  readonly tty: { readonly rows: number; readonly cols: number } | null
  /** Limits instead of those of the sandbox. */
  readonly rlimits: readonly { readonly resource: string; readonly soft: number; readonly hard: number }[]
}

/** The agent says that the sandbox can't be what was asked for. */
export class AgentRefusal extends Error {}

/** A connection to the agent in a sandbox, which carries any number of processes. */
export type AgentLink = {
  /** Starts a process. Rejects with `ExecFailure`, also when the connection is lost meanwhile. */
  start(request: AgentStart): Promise<GuestProcess>
  /** Whether the agent sets limits. One of an earlier version ignores them. */
  readonly setsLimits: boolean
  /** Whether the connection is lost or closed. All processes of it are then killed by the agent. */
  readonly isClosed: boolean
  /** Resolves when the connection is closed. */
  readonly closed: Promise<void>
  close(): void
}

/** The agent ends after 90 s without a message. */
const PING_MS = 20_000
const HELLO_LIMIT_MS = 20_000

type Waiting = {
  readonly hasTty: boolean
  readonly resolve: (process: GuestProcess) => void
  readonly reject: (error: Error) => void
}

/**
 * Speaks with a fresh `guest/agent.pl` over its standard streams; the script documents the messages. Rejects if it doesn't say that it
 * is ready. The sandbox may have replaced the agent: a message that breaks the protocol closes the connection, and `pace` says how many are
 * taken in a turn.
 */
export async function openAgentLink(stream: Duplex, pace: Pace): Promise<AgentLink> {
  const processes = new Map<number, LinkedProcess>()
  const starting = new Map<number, Waiting>()
  const ready = Promise.withResolvers<void>()
  const closed = Promise.withResolvers<void>()
  let isClosed = false
  let version = 0
  let last = 0
  let draining: PromiseWithResolvers<void> | null = null

  const send = (type: string, number: number, fields: Buffer = Buffer.alloc(0)): void => {
    if (isClosed) return
    stream.write(encodeAgentMessage(type, number, fields))
  }
  const drained = async (): Promise<void> => {
    if (isClosed || !stream.writableNeedDrain) return
    draining ??= Promise.withResolvers()
    await draining.promise
  }
  const onDrained = (): void => {
    draining?.resolve()
    draining = null
  }
  const close = (why: string, refusal: AgentRefusal | null = null): void => {
    if (isClosed) return
    isClosed = true
    clearInterval(pinging)
    stream.destroy()
    ready.reject(refusal ?? new Error(why))
    for (const { reject } of starting.values()) reject(new ExecFailure('other', why))
    for (const process of processes.values()) process.lose()
    starting.clear()
    processes.clear()
    closed.resolve()
    onDrained()
  }
  const hasLimits = (): boolean => version >= LIMITS_VERSION
  const started = (number: number, fields: Buffer): boolean => {
    const waiting = starting.get(number)
    if (waiting === undefined || fields.length !== 4) return false
    starting.delete(number)
    const process = makeLinkedProcess({
      pid: fields.readUInt32BE(0),
      hasTty: waiting.hasTty,
      send: (type, content) => {
        send(type, number, content)
      },
      drained,
      onOver: () => {
        processes.delete(number)
      },
    })
    processes.set(number, process)
    waiting.resolve(process.guestProcess)
    return true
  }
  const failed = (number: number, fields: Buffer): boolean => {
    const waiting = starting.get(number)
    if (waiting === undefined || fields.length < 5) return false
    starting.delete(number)
    waiting.reject(startFailureOf(fields))
    return true
  }
  /** Handles one message. False if it breaks the protocol. */
  const receive = (type: string, number: number, fields: Buffer): boolean => {
    if (type === 'H') {
      version = fields[0] ?? 0
      const refused = fields.toString('utf8', 1)
      if (refused !== '') close(refused, new AgentRefusal(`rlimits: ${refused}`))
      ready.resolve()
      return true
    }
    if (type === 'S') return started(number, fields)
    if (type === 'F') return failed(number, fields)
    return processes.get(number)?.receive(type, fields) ?? true
  }
  const reader = makeAgentMessageReader()
  const taking = {
    pace,
    take({ type, number, fields }: AgentMessage): number {
      if (!isClosed && !receive(type, number, fields)) throw new AgentProtocolError(`an unexpected message ${type}`)
      return 1
    },
    hold: makeStreamHolds(stream),
    isOver: () => isClosed,
    onFailure() {
      close('the helper process in the sandbox broke its protocol')
    },
  }
  const onData = (piece: Buffer): void => {
    takeAtPace(reader.push(piece), taking)
  }
  const pinging = setInterval(() => {
    send('P', 0)
  }, PING_MS)
  pinging.unref()
  const onEnd = (): void => {
    close('the connection to the sandbox was lost')
  }
  stream.on('data', onData).on('drain', onDrained).on('end', onEnd).on('close', onEnd).on('error', onEnd)

  const limit = setTimeout(() => {
    close('the helper process in the sandbox did not answer')
  }, HELLO_LIMIT_MS)
  try {
    await ready.promise
  } finally {
    clearTimeout(limit)
  }
  return {
    start(request) {
      return new Promise((resolve, reject) => {
        if (isClosed) {
          reject(new ExecFailure('other', 'the connection to the sandbox was lost'))
          return
        }
        if (request.rlimits.length > 0 && !hasLimits()) {
          reject(
            new ExecFailure(
              'resource_limit',
              'this sandbox was started before commands had limits of their own',
              NO_LIMITS,
            ),
          )
          return
        }
        last = (last + 1) % 0x1_0000_0000
        starting.set(last, { hasTty: request.tty !== null, resolve, reject })
        send('S', last, encodeStart(request))
      })
    },
    get setsLimits() {
      return hasLimits()
    },
    get isClosed() {
      return isClosed
    },
    closed: closed.promise,
    close: () => {
      close('the connection to the sandbox was closed')
    },
  }
}

const [TERMINAL, OWN_ENV, LIMITS] = [1, 2, 4]
/** The first version of the agent that takes limits. The toolbox of a sandbox is as old as its run. */
const LIMITS_VERSION = 1
const NO_LIMITS = { errno: constants.errno.ENOSYS, errnoName: 'ENOSYS', stage: 'setrlimit' } as const

function encodeStart({ command, env, hasOwnEnv, cwd, user, tty, rlimits }: AgentStart): Buffer {
  const head = Buffer.alloc(5)
  const limits = rlimits.length === 0 ? [] : [encodeLimits(rlimits)]
  head.writeUInt8((tty === null ? 0 : TERMINAL) | (hasOwnEnv ? OWN_ENV : 0) | (limits.length === 0 ? 0 : LIMITS), 0)
  head.writeUInt16BE(tty?.rows ?? 0, 1)
  head.writeUInt16BE(tty?.cols ?? 0, 3)
  const texts = [cwd ?? '', user ?? '', ...limits, String(env.length), ...env, ...command]
  return Buffer.concat([head, ...texts.flatMap(encodeText)])
}

function encodeText(text: string): readonly Buffer[] {
  const bytes = Buffer.from(text)
  const length = Buffer.alloc(4)
  length.writeUInt32BE(bytes.length, 0)
  return [length, bytes]
}

/** Linux's numbers of errors that say why a program can't be executed (errno(3)). */
const EXEC_ERRORS: Readonly<Record<number, { readonly kind: ExecFailure['kind']; readonly name: string }>> = {
  1: { kind: 'permission_denied', name: 'EPERM' },
  2: { kind: 'not_found', name: 'ENOENT' },
  7: { kind: 'bad_args', name: 'E2BIG' },
  8: { kind: 'not_executable', name: 'ENOEXEC' },
  11: { kind: 'resource_limit', name: 'EAGAIN' },
  12: { kind: 'out_of_memory', name: 'ENOMEM' },
  13: { kind: 'permission_denied', name: 'EACCES' },
  20: { kind: 'not_found', name: 'ENOTDIR' },
  22: { kind: 'other', name: 'EINVAL' },
  24: { kind: 'resource_limit', name: 'EMFILE' },
}
const STAGES: Readonly<Record<string, { readonly kind: ExecFailure['kind'] | null; readonly stage: string }>> = {
  c: { kind: 'bad_cwd', stage: 'chdir' },
  u: { kind: 'user_setup_failed', stage: 'setuid' },
  p: { kind: 'pty_setup_failed', stage: 'pty' },
  l: { kind: 'resource_limit', stage: 'setrlimit' },
  e: { kind: null, stage: 'exec' },
}

function startFailureOf(fields: Buffer): ExecFailure {
  const { kind = null, stage } = STAGES[fields.toString('latin1', 0, 1)] ?? {}
  const errno = fields.readUInt32BE(1)
  const known = EXEC_ERRORS[errno]
  const detail = {
    errno,
    ...(known === undefined ? {} : { errnoName: known.name }),
    ...(stage === undefined ? {} : { stage }),
  }
  return new ExecFailure(kind ?? known?.kind ?? 'other', fields.toString('utf8', 5), detail)
}
