import { createRequire } from 'node:module'

/** The native functions for pseudo-terminals that Node lacks. */
export type PtyBinding = {
  /** Opens a pseudo-terminal. Returns the descriptors of both sides and the path of the slave. */
  open(cols: number, rows: number): { readonly master: number; readonly slave: number; readonly pty: string }
  /** Sets the size of the terminal that is open as `fd`; the kernel signals its foreground processes. */
  resize(fd: number, cols: number, rows: number): void
}

/**
 * Loads the native part of `@lydell/node-pty`, an optional dependency. Returns null if the package is not installed.
 * The package's JavaScript class is not used: it drops output that is still unread 200 ms after the process's end, and
 * can't resize a terminal in a container.
 */
export function loadPtyBinding(): PtyBinding | null {
  const require = createRequire(import.meta.url)
  try {
    const loader: unknown = require('@lydell/node-pty/requireBinary.js')
    if (!hasFunction(loader, 'requireBinary')) return null
    const binding = loader.requireBinary('pty.node')
    return isBinding(binding) ? binding : null
  } catch {
    return null // no prebuilt binary for this machine; script(1) is used instead, with a process to resize
  }
}

function isBinding(value: unknown): value is PtyBinding {
  return hasFunction(value, 'open') && hasFunction(value, 'resize')
}

function hasFunction<K extends string>(
  value: unknown,
  name: K,
): value is Readonly<Record<K, (...args: readonly unknown[]) => unknown>> {
  return (
    typeof value === 'object' &&
    value !== null &&
    typeof Object.entries(value).find(([key]) => key === name)?.[1] === 'function'
  )
}
