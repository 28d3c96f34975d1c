import type { RunId, SandboxId } from '../../src/domain/ids.ts'

/** What clients were told, and so may rely on. */
export type Acks = {
  readonly created: Set<SandboxId>
  readonly deleted: Set<SandboxId>
  /** Runs that were open when a stop was asked for that was acknowledged. */
  readonly stopped: Set<RunId>
  /** The names of sandboxes whose last rename was acknowledged, with none after it whose outcome is not known. */
  readonly named: Map<SandboxId, string>
}

/** Nothing was acknowledged yet. */
export function makeAcks(): Acks {
  return { created: new Set(), deleted: new Set(), stopped: new Set(), named: new Map() }
}
