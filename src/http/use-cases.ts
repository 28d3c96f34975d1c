import type { Duplex } from 'node:stream'
import type { CreateInput } from '../control/create-sandbox.ts'
import type { EventPage, EventRow, EventsInput } from '../control/read-events.ts'
import type { Org } from '../control/read-org.ts'
import type { SandboxPage, SandboxRef } from '../control/read-sandboxes.ts'
import type { Caller } from '../domain/caller.ts'
import type { EventId, SandboxId } from '../domain/ids.ts'
import type { Sandbox } from '../domain/sandbox.ts'

export type { SandboxRef } from '../control/read-sandboxes.ts'

/**
 * What the transport asks of the program, and all that it knows of it. Each method throws `Problem` for a refusal that
 * the client is to meet. Organizations and events are sent as JSON as they are.
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
  ): Promise<SandboxPage>
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
  getOrg(caller: Caller): Promise<Org>
  listEvents(caller: Caller, input: EventsInput): Promise<EventPage>
  getEvent(caller: Caller, id: EventId): Promise<EventRow>
  /** The bytes of the agent protocol for one client of a running sandbox. */
  openChannel(caller: Caller, id: SandboxId, signal: AbortSignal): Promise<Duplex>
}
