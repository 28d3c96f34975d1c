import { posix } from 'node:path'
import { Writable } from 'node:stream'
import ssh2 from 'ssh2'
import type { ChannelClient } from '../channel-client/channel-client.ts'
import { FileFailure, type FileChanges, type FileEntry } from '../channel-client/files.ts'
import { once } from '../lib/turns/once.ts'
import { makeSemaphore } from '../lib/turns/semaphore.ts'
import { findSandboxUser, type SandboxUser } from './sandbox-user.ts'
import { waitUntilWritable } from './channel-writer.ts'
import { makeSftpMessages } from './sftp-messages.ts'
import type { SshConnection } from './shared-connection.ts'

const { OPEN_MODE, STATUS_CODE } = ssh2.utils.sftp

/** How many operations of one SFTP session run at a time. OpenSSH's client sends 64 at once, which wait. */
const RUNNING_MAX = 16
/** The longest read of one request. OpenSSH's client takes messages of up to 256 KiB. */
const READ_MAX_BYTES = 255 * 1024

/** How long the sandbox may take to tell who its user is. */
const USER_LIMIT_MS = 30_000

type Sftp = { readonly client: ChannelClient; readonly person: SandboxUser }

/**
 * Serves the SFTP subsystem (draft-ietf-secsh-filexfer-02) by the file operations of the agent protocol. A client that doesn't
 * read its replies, or sends requests faster than they are answered, waits. `closed` aborts when the client has closed the session.
 * Resolves when the session is over. Never rejects.
 */
export async function serveSftp(
  shared: SshConnection,
  channel: ssh2.ServerChannel,
  closed: AbortSignal,
): Promise<void> {
  const stream = makeSftpMessages(channel, shared.ident)
  const permits = makeSemaphore(RUNNING_MAX)
  const running = new Set<Promise<void>>()
  const handles = new Set<number>()
  const open = once(async (): Promise<Sftp> => {
    const client = await shared.client()
    return { client, person: await findSandboxUser(client, AbortSignal.timeout(USER_LIMIT_MS)) }
  })
  let draining: Promise<void> | null = null
  /** Waits until the client has taken most of its replies. */
  const drained = (): Promise<void> => {
    draining ??= waitUntilWritable(channel, { ...shared, closed }).finally(() => {
      draining = null
    })
    return draining
  }
  const answer = (id: number, work: (sftp: Sftp) => Promise<void>): void => {
    const answered = permits
      .run(async () => {
        await drained()
        if (!closed.aborted) await work(await open())
      })
      .catch((error: unknown) => {
        if (error instanceof EndOfFile) stream.status(id, STATUS_CODE.EOF)
        else if (error instanceof FileFailure) stream.status(id, statusOf(error), error.message)
        else stream.status(id, STATUS_CODE.FAILURE, error instanceof Error ? error.message : 'failed')
      })
      .finally(() => running.delete(answered))
    running.add(answered)
  }
  const done = (id: number, work: (sftp: Sftp) => Promise<unknown>): void => {
    answer(id, async (sftp) => {
      await work(sftp)
      stream.status(id, STATUS_CODE.OK)
    })
  }
  const give = (id: number, handle: number): void => {
    handles.add(handle)
    const bytes = Buffer.alloc(8)
    bytes.writeBigUInt64BE(BigInt(handle))
    stream.handle(id, bytes)
  }
  const closeHandle = async (handle: number): Promise<void> => {
    try {
      const { client } = await open()
      await client.files.close(handle)
    } catch (error) {
      shared.log.debug({ error }, 'a file of an SFTP session could not be closed')
    }
  }
  const requireOpen = (handle: number): number => {
    if (!handles.has(handle)) throw new Error('the handle is not open')
    return handle
  }

  stream.on('REALPATH', (id, path) => {
    answer(id, async ({ client, person }) => {
      stream.name(id, [name(await client.files.realPath(at(person, path)))])
    })
  })
  stream.on('STAT', (id, path) => {
    answer(id, async ({ client, person }) => {
      stream.attrs(id, attributes(await client.files.stat(at(person, path), { follow: true })))
    })
  })
  stream.on('LSTAT', (id, path) => {
    answer(id, async ({ client, person }) => {
      stream.attrs(id, attributes(await client.files.stat(at(person, path), { follow: false })))
    })
  })
  stream.on('FSTAT', (id, bytes) => {
    const handle = handleOf(bytes)
    answer(id, async ({ client }) => {
      stream.attrs(id, attributes(await client.files.statHandle(requireOpen(handle))))
    })
  })
  stream.on('OPEN', (id, path, flags, attrs) => {
    answer(id, async ({ client, person }) => {
      const has = (flag: number): boolean => (flags & flag) !== 0
      const handle = await client.files.open(at(person, path), {
        read: has(OPEN_MODE.READ),
        write: has(OPEN_MODE.WRITE),
        append: has(OPEN_MODE.APPEND),
        create: has(OPEN_MODE.CREAT) && !has(OPEN_MODE.EXCL),
        truncate: has(OPEN_MODE.TRUNC),
        create_new: has(OPEN_MODE.CREAT) && has(OPEN_MODE.EXCL),
        mode: permissionsOf(attrs),
        user: person.user,
      })
      give(id, handle)
    })
  })
  stream.on('READ', (id, bytes, offset, length) => {
    const handle = handleOf(bytes)
    answer(id, async ({ client }) => {
      const data = await client.files.read(requireOpen(handle), offset, Math.min(length, READ_MAX_BYTES))
      if (data.length === 0) throw new EndOfFile()
      stream.data(id, data)
    })
  })
  stream.on('WRITE', (id, bytes, offset, data) => {
    const handle = handleOf(bytes)
    const copy = Buffer.from(data) // the library reads the next packet into the same memory
    done(id, ({ client }) => client.files.write(requireOpen(handle), offset, copy))
  })
  stream.on('CLOSE', (id, bytes) => {
    const handle = handleOf(bytes)
    done(id, async ({ client }) => {
      requireOpen(handle)
      handles.delete(handle)
      await client.files.close(handle)
    })
  })
  stream.on('OPENDIR', (id, path) => {
    answer(id, async ({ client, person }) => {
      give(id, await client.files.openFolder(at(person, path)))
    })
  })
  stream.on('READDIR', (id, bytes) => {
    const handle = handleOf(bytes)
    answer(id, async ({ client }) => {
      const entries = await client.files.readFolder(requireOpen(handle))
      if (entries.length === 0) throw new EndOfFile()
      stream.name(id, entries.map((entry) => ({ ...name(posix.basename(entry.path), entry), attrs: attributes(entry) }))) // prettier-ignore
    })
  })
  stream.on('SETSTAT', (id, path, attrs) => {
    done(id, ({ client, person }) => client.files.setStat(at(person, path), changesOf(attrs), { follow: true }))
  })
  stream.on('FSETSTAT', (id, bytes, attrs) => {
    const handle = handleOf(bytes)
    done(id, ({ client }) => client.files.setStatHandle(requireOpen(handle), changesOf(attrs)))
  })
  stream.on('MKDIR', (id, path, attrs) => {
    done(id, async ({ client, person }) => {
      const folder = at(person, path)
      if (await exists(client, folder)) throw new FileFailure('mkdir: File exists (os error 17)')
      await client.files.mkdir(folder, permissionsOf(attrs), person.user)
    })
  })
  stream.on('RMDIR', (id, path) => {
    done(id, ({ client, person }) => client.files.rmdir(at(person, path)))
  })
  stream.on('REMOVE', (id, path) => {
    done(id, ({ client, person }) => client.files.remove(at(person, path)))
  })
  stream.on('RENAME', (id, from, to) => {
    done(id, async ({ client, person }) => {
      const target = at(person, to)
      if (await exists(client, target)) throw new FileFailure('rename: File exists (os error 17)') // as version 3 says
      await client.files.rename(at(person, from), target)
    })
  })
  stream.on('READLINK', (id, path) => {
    answer(id, async ({ client, person }) => {
      stream.name(id, [name(await client.files.readLink(at(person, path)))])
    })
  })
  // OpenSSH's client sends the target first, against the draft. The library undoes that for it.
  stream.on('SYMLINK', (id, path, target) => {
    done(id, ({ client, person }) => client.files.symlink(target, at(person, path), person.user))
  })

  /** Calls `next` once every request so far has begun, so that one piece of them waits at most. */
  const readOn = async (next: () => void): Promise<void> => {
    await permits.run(drained)
    next()
  }
  const requests = new Writable({
    write(piece: Buffer, _encoding, next) {
      try {
        stream.push(piece)
      } catch (error) {
        breakOff(error) // the library throws for a length of 2 GiB or more
        return
      }
      void readOn(next)
    },
  })
  const breakOff = (error: unknown): void => {
    shared.log.debug({ error }, 'an SFTP session broke')
    requests.destroy()
    channel.close()
  }
  const over = new Promise((resolve) => requests.once('close', resolve))
  closed.addEventListener('abort', () => requests.destroy(), { once: true })
  stream.on('error', breakOff)
  channel.on('error', () => undefined)
  channel.pipe(requests)
  await over
  await Promise.all(running)
  channel.exit(0) // OpenSSH's client fails without a status
  channel.end()
  for (const handle of handles) await closeHandle(handle)
}

class EndOfFile extends Error {}

/** The number of a handle, or -1. Its bytes are not kept: they are in memory that the library uses again. */
function handleOf(bytes: Buffer): number {
  return bytes.length === 8 ? Number(bytes.readBigUInt64BE()) : -1
}

function at({ folder }: SandboxUser, path: string): string {
  return posix.resolve(folder, path)
}

async function exists(client: ChannelClient, path: string): Promise<boolean> {
  try {
    await client.files.stat(path, { follow: false })
    return true
  } catch (error) {
    if (error instanceof FileFailure) return false
    throw error
  }
}

const ENOENT = 2
const EACCES = 13
const EPERM = 1

function statusOf({ errno }: FileFailure): number {
  if (errno === ENOENT) return STATUS_CODE.NO_SUCH_FILE
  return errno === EACCES || errno === EPERM ? STATUS_CODE.PERMISSION_DENIED : STATUS_CODE.FAILURE
}

function attributes({ mode, uid, gid, size, atime, mtime }: FileEntry): ssh2.Attributes {
  return { mode, uid, gid, size, atime: atime ?? 0, mtime: mtime ?? 0 }
}

function name(filename: string, entry?: FileEntry): ssh2.FileEntry {
  const longname = entry === undefined ? filename : describeEntry(filename, entry)
  return { filename, longname, attrs: entry === undefined ? { mode: 0, uid: 0, gid: 0, size: 0, atime: 0, mtime: 0 } : attributes(entry) } // prettier-ignore
}

const TYPE_LETTERS: ReadonlyMap<number, string> = new Map([
  [0o040000, 'd'],
  [0o120000, 'l'],
  [0o100000, '-'],
])

/** A line as `ls -l` prints it, which some clients show. */
function describeEntry(filename: string, { mode, uid, gid, size, mtime }: FileEntry): string {
  const bits = [8, 7, 6, 5, 4, 3, 2, 1, 0].map((bit) => (((mode >> bit) & 1) === 1 ? 'rwx'.charAt((8 - bit) % 3) : '-'))
  const time = new Date((mtime ?? 0) * 1000).toISOString().slice(0, 16).replace('T', ' ')
  const type = TYPE_LETTERS.get(mode & 0o170000) ?? '?'
  return `${type}${bits.join('')} 1 ${String(uid)} ${String(gid)} ${String(size).padStart(12)} ${time} ${filename}`
}

type Given = { readonly [name in keyof FileChanges]?: unknown }

function changesOf(attrs: Given): FileChanges {
  const number = (value: unknown): number | null => (typeof value === 'number' ? value : null)
  const { uid, gid, size, atime, mtime } = attrs
  return { mode: permissionsOf(attrs), uid: number(uid), gid: number(gid), size: number(size), atime: number(atime), mtime: number(mtime) } // prettier-ignore
}

function permissionsOf({ mode }: Given): number | null {
  return typeof mode === 'number' ? mode & 0o7777 : null
}
