import { readdir } from 'node:fs/promises'
import { join } from 'node:path'
import { syncPath } from '../../../../lib/files.ts'

/** The files in the folder of a snapshot: the disk, and its `TakenSnapshot`. The image is stored as with the disk of a sandbox. */
export const DISK = 'disk.img'
export const FACTS = 'snapshot.json'
/** The suffix of the folder of a snapshot that is not complete. */
export const PARTIAL = '.new'

/** Makes a folder and the files in it durable. */
export async function syncAll(folder: string): Promise<void> {
  for (const name of await readdir(folder)) await syncPath(join(folder, name))
  await syncPath(folder)
}
