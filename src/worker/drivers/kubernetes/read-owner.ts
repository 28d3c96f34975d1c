import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'
import { readOrCreateFile } from '../../../lib/read-or-create.ts'
import type { KubernetesDriverInput } from './context.ts'

/** Reads the id of the data folder, which marks its Pods, or makes it at the first start. */
export async function readOwner({ dir, random }: Pick<KubernetesDriverInput, 'dir' | 'random'>): Promise<string> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  return await readOrCreateFile(join(dir, 'owner'), random, () => random.bytes(16).toString('hex'))
}
