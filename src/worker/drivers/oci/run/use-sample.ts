import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { hasErrorCode } from '../../../../lib/error-code.ts'
import { readFileOrNull } from '../../../../lib/files.ts'
import { RUN_FOLDER } from '../../../mounts.ts'
import type { MeasuredUse } from '../cgroups/measure-use.ts'

/** What a container used when it was last sampled. */
export type UseSample = MeasuredUse & {
  readonly at: string
  /** How many vCPUs it used on average since the sample before. Null in the first sample. */
  readonly used_vcpus: number | null
  /** Its writable disk. */
  readonly disk_used_bytes: number
  readonly disk_size_bytes: number
  /** Null if its processes' network can't be read. */
  readonly received_bytes: number | null
  readonly sent_bytes: number | null
}

/** The file beside a run's mounts that has its last sample. It is in memory, and ends with the run. */
export const USE_SAMPLE_FILE = 'use.json'

/** Reads the last sample of a run of any installation on this machine. Null if there is none, or this user may not read it. */
export async function readUseSample(run: string): Promise<UseSample | null> {
  try {
    for (const key of await readdir(RUN_FOLDER)) {
      const text = await readFileOrNull(join(RUN_FOLDER, key, run, USE_SAMPLE_FILE))
      if (text !== null) return JSON.parse(text) as UseSample // written by the worker
    }
  } catch (error) {
    if (!hasErrorCode(error, 'ENOENT', 'EACCES', 'ENOTDIR')) throw error
  }
  return null
}
