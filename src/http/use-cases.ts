import type { Duplex } from 'node:stream'
import type { Caller } from '../domain/caller.ts'
import type { EventId, SandboxId } from '../domain/ids.ts'
import type { Sandbox } from '../domain/sandbox.ts'
import type { RegistrySelection, SandboxSpec } from '../domain/spec.ts'

/** How a request names a sandbox. */
export type SandboxRef = { readonly id: SandboxId } | { readonly name: string }

export type Page<Item> = { readonly items: readonly Item[]; readonly nextCursor: string | null }

export type CreateInput = {
  readonly spec: SandboxSpec
  readonly name: string | null
  readonly slug: string | null
  readonly registry: RegistrySelection
  readonly start: boolean
  /** null: the answer waits for nothing. */
  readonly waitMs: number | null
  readonly signal: AbortSignal
}

export type ListEventsInput = {
  readonly event_type: string | null
  readonly since: Date | null
  readonly until: Date | null
  readonly cursor: string | null
  readonly limit: number
}

/**
 * What the transport asks of the program, and all that it knows of it. Each method throws `Problem` for a refusal that
 * the client is to meet. Objects without a shape here are sent as JSON as they are.
 */
export interface UseCases {
  /** Who a key belongs to, or null for one that is unknown or no longer valid. */
  authenticate(key: string): Promise<Caller | null>
  createSandbox(caller: Caller, input: CreateInput): Promise<Sandbox>
  getSandbox(caller: Caller, ref: SandboxRef): Promise<Sandbox>
  listSandboxes(
    caller: Caller,
    input: {
      readonly cursor: string | null
      readonly limit: number
      readonly labels: Readonly<Record<string, string>>
    },
  ): Promise<Page<Sandbox>>
  startSandbox(
    caller: Caller,
    ref: SandboxRef,
    input: { readonly waitMs: number | null; readonly signal: AbortSignal },
  ): Promise<Sandbox>
  stopSandbox(caller: Caller, ref: SandboxRef): Promise<Sandbox>
  renameSandbox(
    caller: Caller,
    ref: SandboxRef,
    change: { readonly name?: string; readonly slug?: string },
  ): Promise<Sandbox>
  deleteSandbox(caller: Caller, ref: SandboxRef): Promise<void>
  getOrg(caller: Caller): Promise<object>
  listEvents(caller: Caller, input: ListEventsInput): Promise<Page<object>>
  getEvent(caller: Caller, id: EventId): Promise<object>
  /** The bytes of the agent protocol for one client of a running sandbox. */
  openChannel(caller: Caller, id: SandboxId, signal: AbortSignal): Promise<Duplex>
}
