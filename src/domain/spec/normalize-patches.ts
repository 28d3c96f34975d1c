import { bytesOf } from '../byte-lists.ts'
import { GUEST_PATH_RULE, normalizeGuestPath } from './guest-path.ts'
import { PATH_MAX_BYTES } from '../requests/request-bounds.ts'
import { byteLength } from '../names.ts'
import { describeSeen, type Refuse } from '../refusal.ts'
import type { Patch } from './spec.ts'
import type { PatchInput } from './spec-input.ts'

/** Fills in the defaults of patches and keeps their order. The list of bytes in a `file` patch becomes base64. */
export function normalizePatches(inputs: readonly PatchInput[], refuse: Refuse): readonly Patch[] {
  return inputs.map((input, index) => normalizePatch(input, { at: `patches[${String(index)}]`, refuse }))
}

type FieldContext = { readonly at: string; readonly refuse: Refuse }

function normalizePatch(input: PatchInput, context: FieldContext): Patch {
  const guest = (key: string, path: string): string => guestPath(path, `${context.at}.${key}`, context.refuse)
  switch (input.type) {
    case 'text':
    case 'Text':
      return { type: 'text', path: guest('path', input.path), content: input.content, ...writeOptions(input) }
    case 'file':
    case 'File':
      return {
        type: 'file',
        path: guest('path', input.path),
        content: toBase64(bytesOf(input.content)),
        ...writeOptions(input),
      }
    case 'copy_file':
    case 'CopyFile':
      return {
        type: 'copy_file',
        src: relativePath(input.src, 'src', context),
        dst: guest('dst', input.dst),
        ...writeOptions(input),
      }
    case 'copy_dir':
    case 'CopyDir':
      return {
        type: 'copy_dir',
        src: relativePath(input.src, 'src', context),
        dst: guest('dst', input.dst),
        replace: input.replace ?? false,
      }
    case 'symlink':
    case 'Symlink':
      return {
        type: 'symlink',
        target: relativePath(input.target, 'target', context),
        link: guest('link', input.link),
        replace: input.replace ?? false,
      }
    case 'mkdir':
    case 'Mkdir':
      return { type: 'mkdir', path: guest('path', input.path), mode: input.mode ?? null }
    case 'remove':
    case 'Remove':
      return { type: 'remove', path: guest('path', input.path) }
    case 'append':
    case 'Append':
      return { type: 'append', path: guest('path', input.path), content: input.content }
  }
}

function toBase64({ buffer, byteOffset, byteLength }: Uint8Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64') // not copied: there may be two million
}

function writeOptions(input: { readonly mode?: number | null; readonly replace?: boolean }): {
  readonly mode: number | null
  readonly replace: boolean
} {
  return { mode: input.mode ?? null, replace: input.replace ?? false }
}

function guestPath(path: string, field: string, refuse: Refuse): string {
  const normal = normalizeGuestPath(path)
  if (normal !== null && normal !== '/') return normal
  refuse({
    code: 'invalid_request',
    field,
    seen: describeSeen(path),
    accepted: `${GUEST_PATH_RULE} and is not / itself`,
  })
  return path
}

/** Checks a path that may be relative: a path on the default volume, or the target of a symlink. */
function relativePath(path: string, key: string, { at, refuse }: FieldContext): string {
  if (path === '' || path.includes('\0') || byteLength(path) > PATH_MAX_BYTES) {
    const accepted = `a path of 1 to ${String(PATH_MAX_BYTES)} bytes without NUL`
    refuse({ code: 'invalid_request', field: `${at}.${key}`, seen: describeSeen(path), accepted })
  }
  return path
}
