import { copyFile, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { constants } from 'node:fs'
import { join } from 'node:path'
import { hasErrorCode } from '../../lib/error-code.ts'

/** Says how snapshots of disks are copied in a data folder. Tries it with an empty file, which it deletes. */
export async function describeSnapshots(dataDir: string): Promise<string> {
  const folder = await mkdtemp(join(dataDir, 'doctor-'))
  try {
    await writeFile(join(folder, 'from'), 'x')
    await copyFile(join(folder, 'from'), join(folder, 'to'), constants.COPYFILE_FICLONE_FORCE)
    return "copies share the blocks of a sandbox's disk"
  } catch (error) {
    if (!hasErrorCode(error, 'EOPNOTSUPP', 'ENOTSUP', 'ENOSYS', 'EINVAL', 'EXDEV', 'ENOTTY')) throw error
    return 'disks are copied block by block, and writes wait meanwhile: a data folder on XFS or btrfs avoids that'
  } finally {
    await rm(folder, { recursive: true })
  }
}
