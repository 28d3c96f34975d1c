import type { DesiredRun } from '../../../contract/workers/worker-protocol.ts'
import type { PullPolicy, SandboxSpec } from '../../../domain/spec/spec.ts'
import type { Image, ImageConfig, RegistryAuth } from '../../images/image.ts'
import { LIFECYCLE_LINES } from '../../logs/lifecycle-lines.ts'
import type { LogWriter } from '../../logs/logs.ts'
import { StartError } from '../../start-error.ts'

/** What a driver needs of the image store. */
export interface ImageResolver {
  /**
   * Returns the image of a reference, after a pull if the policy asks for one. Calls `onFetched` when it pulled. Rejects
   * with `StartError` of kind `image` or `registry`.
   */
  resolve(
    reference: string,
    options: {
      readonly policy: PullPolicy
      readonly auth: RegistryAuth | null
      readonly signal: AbortSignal
      readonly onFetched?: () => void
    },
  ): Promise<Image>
  /** References that need no pull. */
  list(): Promise<readonly string[]>
}

/**
 * Resolves the image of a run's spec, and tells the sandbox's log which one it is. `pinned` is the image that the
 * sandbox's disk was made over, which a restart keeps; null resolves the spec's reference.
 */
export async function resolveImage(
  { images, log }: { readonly images: ImageResolver; readonly log: Pick<LogWriter, 'system'> },
  { spec, registry_auth }: DesiredRun,
  { pinned, signal }: { readonly pinned: Image | null; readonly signal: AbortSignal },
): Promise<Image> {
  let source: 'pulled' | 'stored' = 'stored'
  const onFetched = (): void => {
    source = 'pulled'
  }
  const image =
    pinned ?? (await images.resolve(spec.image, { policy: spec.pull_policy, auth: registry_auth, signal, onFetched }))
  log.system(LIFECYCLE_LINES.image(image.reference, image.digest, source))
  return image
}

/** The size of a run's disk in MiB: the spec's, or the worker's default within what the organization may have. */
export function diskSizeMib({ spec, default_disk_max_mib }: DesiredRun, defaultDiskMib: number): number {
  return spec.resources.disk_size_mib ?? Math.min(defaultDiskMib, default_disk_max_mib ?? Infinity)
}

/**
 * The command whose end ends the run; null when the sandbox only waits for commands. The command of the image alone is
 * never run (decision 0006).
 */
export function workloadCommand({ runtime }: SandboxSpec, image: ImageConfig): readonly string[] | null {
  return runtime.cmd === null ? null : [...(runtime.entrypoint ?? image.entrypoint ?? []), ...runtime.cmd]
}

/** Throws `StartError` of kind `config` when the name of a script is not one file's name. */
export function assertScriptNames({ runtime }: SandboxSpec): void {
  const name = Object.keys(runtime.scripts).find((candidate) => !isFileName(candidate))
  if (name !== undefined) throw new StartError('config', `'${name}' is not usable as the name of a script`)
}

function isFileName(name: string): boolean {
  return name !== '' && name !== '.' && name !== '..' && !/[/\0]/.test(name) && Buffer.byteLength(name) <= 255
}

/** A script's text with an interpreter line, without which the kernel does not run it (execve(2)). */
export function withInterpreter(text: string, shell: string | null): string {
  return text.startsWith('#!') ? text : `#!${shell ?? '/bin/sh'}\n${text}`
}
