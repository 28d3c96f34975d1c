import { join } from 'node:path'
import type { StartFailure } from '../../../contract/workers/worker-protocol.ts'
import { StartError } from '../../start-error.ts'
import { readFileOrNull } from '../../../lib/files.ts'
import type { VmPaths } from './installation.ts'
import type { SdkAnswer } from './sdk-client.ts'

type Failed = Extract<SdkAnswer, { readonly kind: 'failed' }>

/** What the SDK's kinds of error mean for a start. Those that are absent are the runtime's own affair. */
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

/** What the phases of a virtual machine's own start mean, of which the runtime keeps the one that failed in a file. */
const STAGES: Readonly<Partial<Record<string, StartFailure>>> = {
  mount: 'mount',
  config: 'config',
  network: 'network',
  image: 'image',
  build_vm: 'runtime',
}

/** In words for the sandbox's owner, where the SDK's own would name paths of this machine. */
const WORDS: Readonly<Record<StartFailure, string>> = {
  image: 'the image could not be used for a microVM',
  registry: 'the image could not be got',
  patch: 'a patch could not be applied',
  mount: 'a mount could not be made',
  config: 'the microVM can not be configured so',
  network: "the microVM's network could not be set up",
  disk: "the sandbox's disk could not be made ready",
  runtime: 'the microVM did not start',
  host: 'the worker could not start the microVM',
  cancelled: 'the start was cancelled',
}

/**
 * The error of a start that the SDK told to have failed. The runtime's own words go to the log as its cause; to the owner
 * only where they are about the spec, and name nothing beneath `dir`, the driver's folder.
 */
export async function toStartError(failed: Failed, paths: VmPaths, dir: string): Promise<StartError> {
  const stage = failed.code === 'BootStart' ? await readStage(paths) : null
  const reason = (stage === null ? KINDS[failed.code] : STAGES[stage]) ?? 'runtime'
  const isForOwner = (reason === 'config' || reason === 'patch') && !failed.message.includes(dir)
  const cause = new Error(`${failed.code}${stage === null ? '' : ` (${stage})`}: ${failed.message}`)
  return new StartError(reason, isForOwner ? `${WORDS[reason]}: ${failed.message}` : WORDS[reason], cause)
}

async function readStage({ logs }: VmPaths): Promise<string | null> {
  const text = await readFileOrNull(join(logs, 'boot-error.json'))
  return /"stage"\s*:\s*"(\w+)"/.exec(text ?? '')?.[1] ?? null
}
