/** The toolbox in the helper image. */
export const TOOLBOX_IN_IMAGE = '/toolbox'
/**
 * Neither reserved nor limited, because a container of this image ends soon. A limit would count against the quota for as long as the Pod
 * exists. Quotas need a value, and 0 is no limit.
 */
export const NO_RESOURCES = { requests: { cpu: '0', memory: '0' }, limits: { cpu: '0', memory: '0' } }
