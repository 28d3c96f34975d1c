import { mkdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { readFileOrNull } from '../../../lib/files.ts'
import type { KubernetesDriverInput } from './context.ts'

/** Reads the id of the data folder, which marks its Pods, or makes it at the first start. */
export async function readOwner({ dir, random }: Pick<KubernetesDriverInput, 'dir' | 'random'>): Promise<string> {
  await mkdir(dir, { recursive: true, mode: 0o700 })
  const path = join(dir, 'owner')
  const known = await readFileOrNull(path)
  if (known !== null && known !== '') return known
  const made = random.bytes(16).toString('hex')
  await writeFile(path, made, { mode: 0o600, flush: true })
  return made
}
