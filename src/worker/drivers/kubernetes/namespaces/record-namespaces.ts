import type { PodRunRecord } from '../context.ts'
import type { SandboxNamespaces } from './namespaces.ts'

/** The namespaces that may have objects of an earlier process. */
export function namespacesOf(
  records: readonly PodRunRecord[],
  { mode }: SandboxNamespaces,
  base: string,
): readonly string[] {
  return [...new Set([...records.map(({ namespace }) => namespace), ...(mode === 'shared' ? [base] : [])])]
}

/** Throws if the worker can't see the Pods of its records. They would be taken as gone. */
export function requireNamespaces(records: readonly PodRunRecord[], { mode }: SandboxNamespaces, base: string): void {
  const other = records.find(({ namespace }) => namespace !== base)?.namespace
  if (mode === 'shared' && other !== undefined)
    throw new Error(
      `this worker has sandboxes in other namespaces than ${base}, such as ${other}, and may no longer use those: grant it the rights of packaging/kubernetes again`,
    )
}
