/** What a starting PostgreSQL says. */
import { closeSync, fstatSync, openSync, readSync, rmSync } from 'node:fs'
import { readdir, readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'

/** The output of a starting server. It is kept in memory, because a full disk would lose it. */
export type StartOutput = {
  /** The file descriptor to write to. */
  readonly fd: number
  /** The end of what was written. */
  read(): string
  /** Closes the file. It is gone once the server has closed it too. */
  close(): void
}

const IN_MEMORY = '/dev/shm'
/** How many characters of an output's end an error message includes. */
const TAIL_CHARS = 1_500

/** Opens a file without a name: in memory, or in `logDir` where the machine has no file system in memory. */
export function openStartOutput(logDir: string): StartOutput {
  const fd = openUnnamed(IN_MEMORY) ?? openUnnamed(logDir)
  if (fd === null) throw new Error(`no file can be created in ${IN_MEMORY} or ${logDir}`)
  return {
    fd,
    read() {
      const { size } = fstatSync(fd)
      const bytes = Buffer.alloc(Math.min(size, TAIL_CHARS))
      readSync(fd, bytes, 0, bytes.length, size - bytes.length)
      return bytes.toString('utf8').trim()
    },
    close() {
      closeSync(fd)
    },
  }
}

function openUnnamed(folder: string): number | null {
  const path = join(folder, `sandyard-postgres-${String(process.pid)}`)
  try {
    rmSync(path, { force: true })
    const fd = openSync(path, 'wx+', 0o600)
    rmSync(path)
    return fd
  } catch {
    return null // the next folder may allow it
  }
}

type FailedStart = {
  readonly how: string
  /** What the server wrote before it opened its log. */
  readonly output: string
  readonly logDir: string
  readonly startedAt: Date
}

/** Describes a failed start with PostgreSQL's last words. */
export async function describeFailedStart({ how, output, logDir, startedAt }: FailedStart): Promise<string> {
  const words = [output, await readLogTail(logDir, startedAt)].filter((text) => text !== '').join('\n')
  const said = words === '' ? 'it wrote no message' : `its last words: ${words}`
  return `PostgreSQL did not start (${how}); ${said}`
}

/** Reads the end of the log that was written last, if the server has written to it since its start. */
async function readLogTail(logDir: string, startedAt: Date): Promise<string> {
  const paths = (await readdir(logDir)).map((name) => join(logDir, name))
  const files = await Promise.all(paths.map(async (path) => ({ path, writtenAt: (await stat(path)).mtime })))
  const [newest] = files.filter(({ writtenAt }) => writtenAt >= startedAt).toSorted((a, b) => Number(b.writtenAt) - Number(a.writtenAt)) // prettier-ignore
  return newest === undefined ? '' : (await readFile(newest.path, 'utf8')).trim().slice(-TAIL_CHARS)
}
