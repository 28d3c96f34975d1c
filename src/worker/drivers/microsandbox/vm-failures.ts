import { join } from 'node:path'
import type { StartFailure } from '../../../contract/workers/worker-protocol.ts'
import { StartError } from '../../start-error.ts'
import { readFileOrNull } from '../../../lib/files.ts'
import type { VmPaths } from './installation.ts'
import type { SdkAnswer } from './sdk-client.ts'

type Failed = Extract<SdkAnswer, { readonly kind: 'failed' }>

/** The reason of a start failure for each error code of the SDK. Codes that are not listed have the reason `runtime`. */
const KINDS: Readonly<Partial<Record<string, StartFailure>>> = {
  invalidConfig: 'config',
  noDefaultCommand: 'config',
  imageNotFound: 'image',
  image: 'image',
  patchFailed: 'patch',
  io: 'host',
  database: 'host',
  nix: 'host',
  libkrunfwNotFound: 'host',
}

/** The reason of a start failure for each stage of a virtual machine's boot. The runtime stores the failed stage in a file. */
const STAGES: Readonly<Partial<Record<string, StartFailure>>> = {
  mount: 'mount',
  config: 'config',
  network: 'network',
  image: 'image',
  build_vm: 'runtime',
}

/** Messages for the sandbox's owner. They replace the SDK's messages, which contain paths of this machine. */
const OWNER_MESSAGES: Readonly<Record<StartFailure, string>> = {
  image: 'the image could not be used for a microVM',
  registry: 'the image could not be pulled',
  patch: 'a patch could not be applied',
  mount: 'a mount could not be made',
  config: 'a microVM does not support this configuration',
  network: "the microVM's network could not be set up",
  disk: "the sandbox's disk could not be made ready",
  runtime: 'the microVM did not start',
  host: 'the worker could not start the microVM',
  cancelled: 'the start was cancelled',
}

/**
 * Translates an SDK failure into a `StartError`. The SDK's message becomes the cause, for the log. The owner sees the
 * SDK's message only if it is about the spec and contains no path in `dir`, the driver's folder.
 */
export async function toStartError(failed: Failed, paths: VmPaths, dir: string): Promise<StartError> {
  const stage = failed.code === 'BootStart' ? await readStage(paths) : null
  const reason = (stage === null ? KINDS[failed.code] : STAGES[stage]) ?? 'runtime'
  const isForOwner = (reason === 'config' || reason === 'patch') && !failed.message.includes(dir)
  const cause = new Error(`${failed.code}${stage === null ? '' : ` (${stage})`}: ${failed.message}`)
  return new StartError(
    reason,
    isForOwner ? `${OWNER_MESSAGES[reason]}: ${failed.message}` : OWNER_MESSAGES[reason],
    cause,
  )
}

async function readStage({ logs }: VmPaths): Promise<string | null> {
  const text = await readFileOrNull(join(logs, 'boot-error.json'))
  return /"stage"\s*:\s*"(\w+)"/.exec(text ?? '')?.[1] ?? null
}
