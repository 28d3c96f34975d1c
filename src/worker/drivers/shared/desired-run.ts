import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { OrgId } from '../../../domain/ids.ts'
import type { EgressSecrets } from '../../../domain/network/interception.ts'
import type { PullPolicy, SandboxSpec } from '../../../domain/spec/spec.ts'
import { interceptionOf } from '../../../domain/spec/tls-interception.ts'
import type { Image, ImageConfig, RegistryAuth } from '../../images/image.ts'
import { LIFECYCLE_LINES, writeSystemLine } from '../../logs/lifecycle-lines.ts'
import type { LogWriter } from '../../logs/logs.ts'
import { StartError } from '../../start-error.ts'

/** The part of the image store that a driver uses. */
export interface ImageResolver {
  /**
   * Returns the image of a reference. Pulls the image first if the policy requires it, and calls `onFetched` after a pull.
   * Rejects with `StartError` of reason `image` or `registry`.
   */
  resolve(
    reference: string,
    options: {
      /** The organization of the run. */
      readonly org: OrgId
      readonly policy: PullPolicy
      readonly auth: RegistryAuth | null
      readonly signal: AbortSignal
      readonly onFetched?: () => void
    },
  ): Promise<Image>
  /** Lists the references whose images are already stored. */
  list(): Promise<readonly string[]>
}

/**
 * Resolves the image of a run's spec, and writes its reference and digest to the sandbox's log. `pinned` is the image
 * of the sandbox's existing disk, which every restart uses again. If `pinned` is null, the spec's reference is
 * resolved.
 */
export async function resolveImage(
  { images, log }: { readonly images: ImageResolver; readonly log: Pick<LogWriter, 'system'> },
  { org_id: org, spec, registry_auth }: DesiredRun,
  { pinned, signal }: { readonly pinned: Image | null; readonly signal: AbortSignal },
): Promise<Image> {
  let source: 'pulled' | 'stored' = 'stored'
  const onFetched = (): void => {
    source = 'pulled'
  }
  const image =
    pinned ??
    (await images.resolve(spec.image, { org, policy: spec.pull_policy, auth: registry_auth, signal, onFetched }))
  writeSystemLine(log, spec.runtime.log_level, LIFECYCLE_LINES.image(image.reference, image.digest, source))
  return image
}

/** The worker's sizes of disks, in MiB. */
export type DiskSizes = { readonly defaultDiskMib: number; readonly maxDiskMib: number }

/**
 * Returns the size of a run's disk in MiB: the spec's size, or the worker's default limited to the organization's and the
 * worker's maximum.
 */
export function diskSizeMib({ spec, default_disk_max_mib }: DesiredRun, sizes: DiskSizes): number {
  return (
    spec.resources.disk_size_mib ?? Math.min(sizes.defaultDiskMib, sizes.maxDiskMib, default_disk_max_mib ?? Infinity)
  )
}

/** Throws `StartError` if a new disk would exceed the worker's maximum. A disk that exists already stays usable. */
export function requireDiskSize(sizeMib: number, { maxDiskMib }: DiskSizes): void {
  if (sizeMib <= maxDiskMib) return
  throw new StartError(
    'disk',
    `a disk of ${String(sizeMib)} MiB is larger than this worker allows: at most ${String(maxDiskMib)} MiB (SANDYARD_DISK_MAX_MIB)`,
  )
}

/**
 * Returns the workload's command line, whose end ends the run. Null if the sandbox only waits for commands. The image's
 * own command never runs by itself (decision 0006).
 */
export function workloadCommand({ runtime }: SandboxSpec, image: ImageConfig): readonly string[] | null {
  return runtime.cmd === null ? null : [...(runtime.entrypoint ?? image.entrypoint ?? []), ...runtime.cmd]
}

/**
 * Throws `StartError` of reason `config` if the control plane could not give the values of the run's secrets or the key of
 * its certificate authority. Without them, no request with a placeholder could be judged.
 */
export function requireSecrets({ spec, secrets = null, interception = null }: DesiredRun): void {
  if (interceptionOf(spec.network) !== null && interception === null)
    throw new StartError(
      'config',
      'the key of network.tls.intercept_ca can not be read: create the sandbox again with the key',
    )
  if (spec.network.secrets.length > 0 && secrets === null)
    throw new StartError(
      'config',
      'the values of the secrets can not be read: give them again with PUT /v1/sandboxes/{id}',
    )
}

/** What the egress process needs of a run. */
export function egressSecretsOf({ secrets = null, interception = null }: DesiredRun): EgressSecrets {
  return { secrets: secrets ?? [], interception }
}

/** Throws `StartError` of reason `config` if the name of a script is not a valid file name. */
export function assertScriptNames({ runtime }: SandboxSpec): void {
  const name = Object.keys(runtime.scripts).find((candidate) => !isFileName(candidate))
  if (name !== undefined) throw new StartError('config', `'${name}' is not usable as the name of a script`)
}

function isFileName(name: string): boolean {
  return name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name) && Buffer.byteLength(name) <= 255
}

/** Returns a script's text with an interpreter line. The kernel does not execute a script without one (execve(2)). */
export function withInterpreter(text: string, shell: string | null): string {
  return text.startsWith('#!') ? text : `#!${shell ?? '/bin/sh'}\n${text}`
}
