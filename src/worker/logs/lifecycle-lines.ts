import type { RunOutcome } from '../../contract/workers/worker-protocol.ts'
import { SANDBOX_LOG_LEVELS, type SandboxLogLevel } from '../../domain/spec/spec.ts'
import type { MeasuredPhase } from '../../domain/sandboxes/start-phases.ts'
import type { LogWriter } from './logs.ts'

/** A worker's message about a sandbox. */
type SystemLine = { readonly level: SandboxLogLevel; readonly text: string }

/**
 * Writes a message to a sandbox's log if `runtime.log_level` asks for messages of its level. Null, or undefined in a record of
 * an earlier version, means `info`.
 */
export function writeSystemLine(
  writer: Pick<LogWriter, 'system'>,
  logLevel: SandboxLogLevel | null | undefined,
  { level, text }: SystemLine,
): void {
  if (SANDBOX_LOG_LEVELS.indexOf(level) <= SANDBOX_LOG_LEVELS.indexOf(logLevel ?? 'info')) writer.system(text)
}

/** The lines in a sandbox's log about its runs. The sandbox's owner reads them, and they contain no secrets. */
export const LIFECYCLE_LINES = {
  started: { level: 'info', text: 'started' },
  stopRequested: { level: 'info', text: 'stop requested' },
  ended: (outcome: RunOutcome): SystemLine => ({ level: levelOfEnd(outcome), text: describeEnd(outcome) }),
  image: (reference: string, digest: string, how: 'pulled' | 'stored'): SystemLine => ({
    level: 'info',
    text:
      how === 'pulled' ? `image ${reference} pulled (${digest})` : `image ${reference} was here already (${digest})`,
  }),
  waits: (text: string): SystemLine => ({ level: 'warn', text }),
  memoryKills: (text: string): SystemLine => ({ level: 'warn', text }),
  refused: (level: SandboxLogLevel, text: string): SystemLine => ({ level, text }),
  startPhases: (phases: readonly MeasuredPhase[]): SystemLine => ({
    level: 'debug',
    text: `phases of the start: ${phases.map(describePhase).join(', ')}`,
  }),
} as const satisfies Record<string, SystemLine | ((...args: never[]) => SystemLine)>

function levelOfEnd({ kind }: RunOutcome): SandboxLogLevel {
  return kind === 'exited' || kind === 'signalled' || kind === 'stopped' ? 'info' : 'error'
}

function describePhase({ phase, duration_ms }: MeasuredPhase): string {
  return `${phase} ${String(Math.round(duration_ms))} ms`
}

function describeEnd(outcome: RunOutcome): string {
  switch (outcome.kind) {
    case 'exited':
      return `ended with code ${String(outcome.code)}`
    case 'signalled':
      return `ended by signal ${outcome.signal}`
    case 'out_of_memory':
      return 'out of memory: the sandbox reached its memory limit and was killed'
    case 'disk_full':
      return "stopped because the machine's disk is full and this sandbox's files grew most"
    case 'stopped':
      return 'stopped'
    case 'start_failed':
      return `start failed: ${outcome.message}`
    case 'lost':
      return `lost: ${outcome.message}`
  }
}
