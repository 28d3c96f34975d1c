import type { IncomingMessage, ServerResponse } from 'node:http'
import { pipeline } from 'node:stream/promises'
import { hasErrorCode } from '../../lib/error-code.ts'
import { parseImageReference } from '../../domain/spec/image-reference.ts'
import { verifyBlob } from '../images/blob.ts'
import type { ImageRecord } from '../images/image-records.ts'
import { parseByteRange, type ByteRange } from './byte-range.ts'
import type { PullableImages } from './loaded-images.ts'
import { repositoryOf, type PullAccess } from './pull-access.ts'

/** What a registry reads from. */
export type RegistrySource = {
  readonly images: PullableImages
  readonly access: Pick<PullAccess, 'repositoryIn'>
}

/** The codes of the OCI distribution specification, "Error Codes", with their statuses. */
const PROBLEMS = {
  UNAUTHORIZED: 401,
  DENIED: 403,
  NAME_UNKNOWN: 404,
  MANIFEST_UNKNOWN: 404,
  BLOB_UNKNOWN: 404,
  UNSUPPORTED: 405,
  SIZE_INVALID: 416,
} as const
type Problem = keyof typeof PROBLEMS

const MANIFEST = 'application/vnd.oci.image.manifest.v1+json'
const PATH = /^\/v2\/(?:(.+)\/(manifests|blobs)\/([^/]+))?$/
const DIGEST = /^sha256:[0-9a-f]{64}$/

/**
 * Answers one request of the OCI distribution API, as far as a pull needs it. A credential opens one repository. Every method that
 * writes is refused, also with a credential.
 */
export async function answerPull(
  source: RegistrySource,
  request: IncomingMessage,
  reply: ServerResponse,
): Promise<void> {
  reply.setHeader('docker-distribution-api-version', 'registry/2.0')
  const { method, headers } = request
  request.resume()
  if (method !== 'GET' && method !== 'HEAD') {
    refuse(reply, 'UNSUPPORTED', { allow: 'GET, HEAD', connection: 'close' })
    return
  }
  const opened = source.access.repositoryIn(headers.authorization)
  if (opened === null) {
    refuse(reply, 'UNAUTHORIZED', { 'www-authenticate': 'Basic realm="Sandyard"' })
    return
  }
  const [path = ''] = (request.url ?? '').split('?', 1)
  const [matched, repository, kind, key = ''] = PATH.exec(path) ?? []
  if (matched === undefined) refuse(reply, 'NAME_UNKNOWN')
  else if (repository === undefined) reply.writeHead(200, { 'content-length': 0 }).end()
  else if (repository !== opened) refuse(reply, 'DENIED')
  else if (kind === 'manifests') await answerManifest(source, { repository, key, reply, method })
  else await answerBlob(source, { repository, key, reply, method, range: headers.range })
}

type Asked = {
  readonly repository: string
  /** A tag or a digest. */
  readonly key: string
  readonly reply: ServerResponse
  readonly method: 'GET' | 'HEAD'
}

async function answerManifest({ images }: RegistrySource, { repository, key, reply, method }: Asked): Promise<void> {
  const record = (await imagesOf(images, repository)).find((one) => one.digest === key || tagOf(one) === key)
  const manifest = record === undefined ? null : await images.readManifest(record.digest)
  if (record === undefined || manifest === null) {
    refuse(reply, 'MANIFEST_UNKNOWN')
    return
  }
  reply.writeHead(200, {
    'content-type': mediaTypeOf(manifest.bytes),
    'content-length': manifest.bytes.length,
    'docker-content-digest': record.digest,
  })
  reply.end(method === 'HEAD' ? undefined : manifest.bytes)
}

async function answerBlob(
  { images }: RegistrySource,
  { repository, key, reply, method, range }: Asked & { readonly range: string | undefined },
): Promise<void> {
  const blob = (await hasBlob(images, repository, key)) ? await images.findBlob(key) : null
  if (blob === null) {
    refuse(reply, 'BLOB_UNKNOWN')
    return
  }
  const { sizeBytes } = blob
  const wanted = parseByteRange(range, sizeBytes)
  if (wanted === 'unsatisfiable') {
    refuse(reply, 'SIZE_INVALID', { 'content-range': `bytes */${String(sizeBytes)}` })
    return
  }
  reply.writeHead(wanted === null ? 200 : 206, {
    'content-type': 'application/octet-stream',
    'content-length': wanted === null ? sizeBytes : wanted.end - wanted.start + 1,
    'accept-ranges': 'bytes',
    'docker-content-digest': key,
    ...(wanted === null ? {} : { 'content-range': rangeHeader(wanted, sizeBytes) }),
  })
  if (method === 'HEAD') {
    reply.end()
    return
  }
  const file = blob.open(wanted)
  // The client checks the digest too. A broken disk is seen here, where the log of the worker can say so.
  const content = wanted === null ? verifyBlob(file, { digest: key, sizeBytes, maxBytes: sizeBytes }) : file
  try {
    await pipeline(content, reply)
  } catch (error) {
    if (!hasErrorCode(error, 'ERR_STREAM_PREMATURE_CLOSE', 'ECONNRESET', 'EPIPE')) throw error // the client has left
  } finally {
    file.destroy()
  }
}

/** The images of a repository. */
async function imagesOf(images: Pick<PullableImages, 'list'>, repository: string): Promise<readonly ImageRecord[]> {
  return (await images.list()).filter(({ reference }) => {
    const parsed = parseImageReference(reference, '')
    return parsed.ok && repositoryOf(parsed.reference) === repository
  })
}

function tagOf({ reference }: ImageRecord): string | null {
  const parsed = parseImageReference(reference, '')
  return parsed.ok ? parsed.reference.tag : null
}

/** Whether an image of the repository has the blob. A blob of another repository is none of the caller's. */
async function hasBlob(images: RegistrySource['images'], repository: string, digest: string): Promise<boolean> {
  if (!DIGEST.test(digest)) return false
  for (const { digest: of } of await imagesOf(images, repository)) {
    const manifest = await images.readManifest(of)
    if (manifest?.blobs.some((blob) => blob.digest === digest) === true) return true
  }
  return false
}

/** The type that a manifest says it has. */
function mediaTypeOf(manifest: Buffer): string {
  const parsed: unknown = JSON.parse(manifest.toString('utf8'))
  const isTyped = typeof parsed === 'object' && parsed !== null && 'mediaType' in parsed
  return isTyped && typeof parsed.mediaType === 'string' ? parsed.mediaType : MANIFEST
}

function rangeHeader({ start, end }: ByteRange, sizeBytes: number): string {
  return `bytes ${String(start)}-${String(end)}/${String(sizeBytes)}`
}

function refuse(reply: ServerResponse, code: Problem, headers: Readonly<Record<string, string>> = {}): void {
  const body = JSON.stringify({ errors: [{ code, message: code.toLowerCase().replaceAll('_', ' ') }] })
  reply.writeHead(PROBLEMS[code], {
    ...headers,
    'content-type': 'application/json',
    'content-length': Buffer.byteLength(body),
  })
  reply.end(body)
}
