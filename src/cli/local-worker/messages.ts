import type { RunId, WorkerId } from '../../domain/ids.ts'
import type { DataFolder } from '../server/data-folder.ts'

/** What the worker of `up` needs to begin. */
export type WorkerStart = {
  /** Settings by their variables. The path of the data folder is the one at which it is mounted. */
  readonly settings: Readonly<Record<string, string>>
  readonly folder: Pick<DataFolder, 'path' | 'namePrefix'>
  readonly worker_id: WorkerId
  readonly credential: string
  /** The URL of the API, over loopback. */
  readonly url: string
  /** The SHA-256 of the public key of the API's certificate, in hex. Null for plain HTTP. */
  readonly fingerprint: string | null
}

/** A message of `up` to the process of its worker. `id` numbers what an answer belongs to. */
export type WorkerOrder =
  | { readonly kind: 'start'; readonly start: WorkerStart }
  | { readonly kind: 'fingerprint'; readonly fingerprint: string | null }
  | { readonly kind: 'metrics'; readonly id: number }
  /** Ends the worker cleanly. Its sandboxes stop or run on, as SANDYARD_SHUTDOWN says. */
  | { readonly kind: 'stop' }
  | ConnectionOrder

/** An order about a connection to a sandbox. */
export type ConnectionOrder =
  | {
      readonly kind: 'connect'
      readonly id: number
      readonly run: RunId
      readonly target: { readonly host: string; readonly port: number }
    }
  /** The connection carried bytes. */
  | { readonly kind: 'used'; readonly id: number }
  /** The connection was closed, or is not wanted any more. */
  | { readonly kind: 'closed'; readonly id: number }

/** A message of the worker's process to `up`. */
export type WorkerEvent =
  /** No driver can run sandboxes on this machine. The process ends. */
  | { readonly kind: 'unusable'; readonly message: string }
  /** The driver is open. `connects`: it opens connections to sandboxes. */
  | { readonly kind: 'opened'; readonly connects: boolean }
  /** The worker has synced with the control plane, and the demo image is loaded. */
  | { readonly kind: 'ready' }
  | { readonly kind: 'metrics'; readonly id: number; readonly text: string }
  /** The answer to `connect`. The message carries the socket. */
  | { readonly kind: 'connected'; readonly id: number }
  /** The answer to `connect`: `message` is the reason, null where only a channel can connect. */
  | { readonly kind: 'unconnected'; readonly id: number; readonly message: string | null }
